# SPDX-License-Identifier: Apache-2.0
"""Regions on the CPU: traced into tapes, assembled to a recording, launched."""
