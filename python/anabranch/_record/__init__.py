# SPDX-License-Identifier: Apache-2.0
"""Callables recorded as CUDA graphs, a signature at a time: ``anabranch.record``, and compiled
graphs."""
