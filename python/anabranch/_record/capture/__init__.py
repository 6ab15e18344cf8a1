# SPDX-License-Identifier: Apache-2.0
"""A step captured twice, and what both captures tell."""
