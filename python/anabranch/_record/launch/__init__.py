# SPDX-License-Identifier: Apache-2.0
"""A recording: what a launch takes, allocates and answers."""
