# SPDX-License-Identifier: Apache-2.0
"""Passes over the graphs of torch.fx, and what operators read and write."""
