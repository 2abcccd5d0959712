# SPDX-License-Identifier: Apache-2.0
"""The parts that all other folders share: dtypes, rules and checked options. It imports no other folder."""
