# SPDX-License-Identifier: Apache-2.0
"""What every other part shares: types, rules, checked options. Imports nothing of ours."""
