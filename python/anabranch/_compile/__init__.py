# SPDX-License-Identifier: Apache-2.0
"""The backend of torch.compile: from a graph of torch.fx to regions, plans and recordings."""
