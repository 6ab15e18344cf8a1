# SPDX-License-Identifier: Apache-2.0
"""Recording for other people's trainers, a module a client. Each imports its client only when it is
used; Anabranch itself needs none of them. See docs/clients.md."""
