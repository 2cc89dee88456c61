#!/usr/bin/env bash
# Do GRPO and PPO of a 1.5B model fit one 80 GB card, and what is the critic's share?
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
memplan estimate "$here/grpo_groups.yaml"
memplan estimate "$here/ppo_critic.yaml"
