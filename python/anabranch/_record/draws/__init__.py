# SPDX-License-Identifier: Apache-2.0
"""What a step takes with ``next()`` from iterators that were there before it."""
