# SPDX-License-Identifier: Apache-2.0
"""What a step's Python was seen to read while it ran plainly: guards, and what none can hold."""
