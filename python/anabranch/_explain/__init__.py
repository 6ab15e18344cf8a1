# SPDX-License-Identifier: Apache-2.0
"""What became of a program, for people: as text, as JSON, as a page."""
