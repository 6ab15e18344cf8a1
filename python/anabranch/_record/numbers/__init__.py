# SPDX-License-Identifier: Apache-2.0
"""Numbers of a step that may change between launches."""
