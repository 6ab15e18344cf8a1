# SPDX-License-Identifier: Apache-2.0
"""The C++ core from Python, a module a public header. No torch, no logic."""
