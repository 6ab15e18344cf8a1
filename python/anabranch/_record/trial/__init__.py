# SPDX-License-Identifier: Apache-2.0
"""A step run plainly and as a launch from one state, and both compared."""
