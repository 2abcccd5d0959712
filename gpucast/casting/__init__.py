# SPDX-License-Identifier: Apache-2.0
"""The public calls: checked, and sent to the side that does the work."""
