"""Training: layer by layer, or end to end if the layers require it."""

__all__ = ["PAPER", "Fitted", "RunConflictError", "TrainingConfig", "TrainingError", "fit", "relaxed_log_prob"]

from ddf.errors import RunConflictError, TrainingError
from ddf.training.config import PAPER, TrainingConfig
from ddf.training.fit import Fitted, fit
from ddf.training.relaxation import relaxed_log_prob
