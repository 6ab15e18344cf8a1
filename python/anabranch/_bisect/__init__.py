# SPDX-License-Identifier: Apache-2.0
"""Which switch, and then which graph, region or wait makes a result differ from eager."""
