# SPDX-License-Identifier: Apache-2.0
"""Regions on streams of a GPU, without a recording."""
