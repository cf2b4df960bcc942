"""The trainings of the demo: how long, on how many ranks, and when what is killed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """One training with two faults.

    Attributes:
        task: A key of `demo.models.TASKS`.
        goal: What is learned, for people.
        global_batch_size: Samples a step over all ranks, whatever their number.
        epochs: Epochs in all.
        world_sizes: Ranks before and after the trainer is killed; if one number, nothing is.
        server_dies_at: The step after which the server gets SIGKILL, in the middle of an epoch.
        trainer_dies_at: The step after which all ranks get SIGKILL; later, and not just after a
            checkpoint, so that steps are lost and must be done again.
        checkpoint_every: Steps between two checkpoints.
        prefetch_bytes: What a rank holds ready. Far less than the default of the client: the data
            sets are so small that a rank would have them whole before the server is killed.
        accuracy_floor: The least test accuracy with which the demo counts as passed.
        seed: Of the order and of the model's first weights.
    """

    task: str
    goal: str
    global_batch_size: int
    epochs: int
    world_sizes: tuple[int, ...]
    server_dies_at: int
    trainer_dies_at: int
    checkpoint_every: int
    prefetch_bytes: int
    accuracy_floor: float
    seed: int = 7

    def __post_init__(self) -> None:
        """Refuse a story in which the trainer dies first."""
        if not self.server_dies_at < self.trainer_dies_at:
            raise ValueError(
                f"server_dies_at is {self.server_dies_at}; expected less than "
                f"trainer_dies_at={self.trainer_dies_at}"
            )


# 1,437 samples: 29 steps an epoch. The server dies in epoch 3, the trainer in epoch 6.
DIGITS = Job(
    task="digits",
    goal="which digit is written in an image of 8x8 pixels (small CNN)",
    global_batch_size=48,
    epochs=10,
    world_sizes=(2, 3),
    server_dies_at=100,
    trainer_dies_at=190,
    checkpoint_every=25,
    prefetch_bytes=16 << 10,
    accuracy_floor=0.94,
)

# 294,666 samples: 575 steps an epoch. The server dies in epoch 0, the trainer in epoch 1.
FLIGHTS = Job(
    task="flights",
    goal="will this flight arrive more than 15 minutes late, asked when it departs (small MLP)",
    global_batch_size=512,
    epochs=2,
    world_sizes=(3, 2),
    server_dies_at=300,
    trainer_dies_at=870,
    checkpoint_every=100,
    prefetch_bytes=64 << 10,
    accuracy_floor=0.89,
)

# 600 samples: 20 steps an epoch. The server dies in epoch 3, the trainer in epoch 6.
PHOTOS = Job(
    task="photos",
    goal="which of two photographs is this a piece of; the server crops, flips and recolours it "
    "(small MobileNet)",
    global_batch_size=30,
    epochs=10,
    world_sizes=(2, 1),
    server_dies_at=70,
    trainer_dies_at=130,
    checkpoint_every=25,
    prefetch_bytes=1 << 20,
    accuracy_floor=0.85,
)

JOBS = (DIGITS, FLIGHTS, PHOTOS)
