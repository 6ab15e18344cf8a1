# SPDX-License-Identifier: Apache-2.0
"""What a forward saves for its backward: kept, computed again, or in the host's memory between;
and an optimizer's state there between its steps."""
