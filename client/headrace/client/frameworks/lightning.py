"""Recognise loops that Lightning runs.

To Lightning, each `iter` of a loader begins an epoch, also if the last one was left early: by
``limit_train_batches``, by the sanity check before training. What Lightning knows of its place
stands in its loops, which are on the stack when it asks for a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.client.frameworks.callers import LIGHTNING, callers

_LOADERS = tuple(f"{package}.utilities.combined_loader" for package in LIGHTNING)
_TRAINING = tuple(f"{package}.loops.training_epoch_loop" for package in LIGHTNING)
_OTHERS = tuple(
    f"{package}.loops.{name}"
    for package in LIGHTNING
    for name in ("evaluation_loop", "prediction_loop")
)


@dataclass(frozen=True, slots=True)
class LightningLoop:
    """The loop of Lightning that asks for a batch.

    Attributes:
        is_training: Whether it trains; otherwise it validates, tests or predicts.
        epoch: The number of training epochs that the run has completed.
        batch: The number of batches that the training epoch has had; 0 if it does not train.
        step: Steps of the optimizer that the run has done, those before a resume included.
        unloaded: Its loaders, each with the state of its that Lightning has not loaded: it loads
            them only if the checkpoint was saved inside an epoch.
    """

    is_training: bool = False
    epoch: int = 0
    batch: int = 0
    step: int = 0
    unloaded: tuple[tuple[object, Mapping[str, object]], ...] = ()

    def unloaded_state(self, dataset: object) -> Mapping[str, object] | None:
        """Return the state of a dataset, or of the loader around it, that was not loaded."""
        for loader, state in self.unloaded:
            if loader is dataset or getattr(loader, "dataset", None) is dataset:
                return state
        return None


def lightning_loop() -> LightningLoop | None:
    """Return the loop of Lightning that asks this thread's dataset for a batch; None without."""
    is_asked = False
    for module, frame in callers():
        is_asked = is_asked or module in _LOADERS
        if is_asked and module in _OTHERS:
            return LightningLoop()
        if is_asked and module in _TRAINING and (loop := frame.f_locals.get("self")) is not None:
            return _training(loop)
    return LightningLoop() if is_asked else None


def _training(loop: Any) -> LightningLoop:
    trainer = loop.trainer
    return LightningLoop(
        is_training=True,
        epoch=trainer.fit_loop.epoch_progress.current.processed,
        batch=loop.batch_progress.current.ready,
        step=trainer.global_step,
        unloaded=_unloaded(trainer.fit_loop),
    )


def _unloaded(fit_loop: Any) -> tuple[tuple[object, Mapping[str, object]], ...]:
    states = getattr(fit_loop, "_combined_loader_states_to_load", ())
    if not states:
        return ()
    loaders = fit_loop._combined_loader.flattened  # noqa: SLF001 - nothing public has either
    stateful = [each for each in loaders if hasattr(each, "load_state_dict")]
    return tuple(zip(stateful, states, strict=True)) if len(stateful) == len(states) else ()
