# SPDX-License-Identifier: Apache-2.0
"""What a step's Python leaves behind: found by a plain run, and repeated by launches."""
