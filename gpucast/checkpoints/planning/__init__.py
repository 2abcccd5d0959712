# SPDX-License-Identifier: Apache-2.0
"""What a conversion will do, found out before anything is written."""
