# SPDX-License-Identifier: Apache-2.0
"""How long an example takes is no property of ours: on a busy machine it is anything."""

from hypothesis import HealthCheck, settings

settings.register_profile("rubyunwind", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rubyunwind")
