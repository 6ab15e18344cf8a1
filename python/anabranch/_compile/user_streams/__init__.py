# SPDX-License-Identifier: Apache-2.0
"""Streams and events of torch inside compiled code: checked, taken out, tied to both ends."""
