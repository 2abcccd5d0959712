# SPDX-License-Identifier: Apache-2.0
"""How long tests wait for what would otherwise never end."""

#: Seconds after which what hangs is a failure; no test that passes comes near them on the busiest machine.
HANGS = 300
