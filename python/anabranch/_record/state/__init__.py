# SPDX-License-Identifier: Apache-2.0
"""What a step uses beside its arguments, the guards on it, and the side effects that it leaves."""
