"""RunConfig: the whole resolved configuration, one section a stage. What an artifact's `config_sha256` is taken of."""

import hashlib
import json

from dormouse_core.config.base import Config
from dormouse_core.config.hacks import HoneypotConfig
from dormouse_core.config.policy import PolicyConfig
from dormouse_core.config.stages import (
    CurriculumConfig,
    EvalConfig,
    LoopConfig,
    PretrainConfig,
    RlConfig,
    RolloutConfig,
    RuntimeConfig,
    SftConfig,
    VerifyConfig,
)


class RunConfig(Config):
    preset: str = "nano"
    """Name of the preset this was resolved from."""
    policy: PolicyConfig = PolicyConfig()
    train: PretrainConfig = PretrainConfig()
    sft: SftConfig = SftConfig()
    roll: RolloutConfig = RolloutConfig()
    verify: VerifyConfig = VerifyConfig()
    honeypots: HoneypotConfig = HoneypotConfig()
    rl: RlConfig = RlConfig()
    eval: EvalConfig = EvalConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    loop: LoopConfig = LoopConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    def canonical(self) -> str:
        """Canonical JSON: sorted keys, no spaces."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))

    def sha256(self) -> str:
        return hashlib.sha256(self.canonical().encode()).hexdigest()
