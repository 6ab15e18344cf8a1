# SPDX-License-Identifier: Apache-2.0
"""What tells calls of a callable apart, and what is recorded for each of their signatures."""
