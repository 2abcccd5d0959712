# SPDX-License-Identifier: Apache-2.0
"""What a conversion did, as JSON and HTML."""
