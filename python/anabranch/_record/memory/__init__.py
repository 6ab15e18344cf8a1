# SPDX-License-Identifier: Apache-2.0
"""The GPU's and the host's memory while a step is recorded, and what happens where it runs out."""
