# SPDX-License-Identifier: Apache-2.0
"""What the commands beside it run: models, loops and stalls."""
