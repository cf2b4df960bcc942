"""The order of samples: a pure function of a spec and the shard tables, with no I/O.

``docs/order.md`` specifies it so that another language could implement it.
"""

from headrace.order.basics.hash import sample_keys, transform_keys, uniform_draws
from headrace.order.basics.permutation import NETWORK_ROUNDS, Walk, network_sides, walk_tables
from headrace.order.dataset.dataset_order import Order
from headrace.order.dataset.step import Step
from headrace.order.dealing.dealing import LINE_INVERSES
from headrace.order.filters.subset import Subset, joined_digest
from headrace.order.filters.subset_order import (
    AnyOrder,
    SubsetMixtureOrder,
    SubsetOrder,
    mixture_order_of,
    order_of,
)
from headrace.order.mixture.amounts import epoch_positions
from headrace.order.mixture.mixture import (
    Batching,
    Choice,
    MixtureDataset,
    MixtureSpec,
    combined_fingerprint,
    mixture_differences,
)
from headrace.order.mixture.mixture_json import dump_mixture, load_mixture
from headrace.order.mixture.mixture_order import MixtureOrder
from headrace.order.mixture.schedule import Schedule, linear, piecewise
from headrace.order.samples.pieces import Pieces
from headrace.order.samples.runs import Locate
from headrace.order.samples.shard_table import ShardTable, Stretches, table_of
from headrace.order.samples.skips import Skips, check_skips, check_within, join_skips
from headrace.order.samples.spec import (
    DEFAULT_RUN_BYTES,
    DEFAULT_SHUFFLE_BYTES,
    ORDER_VERSION,
    OrderSpec,
    spec_differences,
)
from headrace.order.slices.buckets import (
    LEAST_BUCKETS,
    MOST_BUCKET_SAMPLES,
    MOST_BUCKETS,
    Buckets,
    Window,
    buckets_text,
    split_buckets,
)
from headrace.order.slices.even_deal import (
    MAX_ACCUMULATED,
    DealSpec,
    check_sizes,
    check_speeds,
    deal_evenly,
    part_edges_of,
    slices_of,
)
from headrace.order.slices.listing import batch_sample_ids, rank_batches
from headrace.order.slices.sequence import SequenceLayout
from headrace.order.slices.slicing import EndMode, EpochPlan, RankBatch, Row, find_rows
from headrace.order.token.token import (
    NUMBER_LIMIT,
    TOKEN_LIMIT_BYTES,
    TOKEN_VERSION,
    Stages,
    Token,
    TokenEncoder,
    decode_token,
    encode_token,
    stages_of,
)
from headrace.order.token.transforms import (
    AUGMENTATION_VERSION,
    IMAGES,
    TOKENIZER,
    TRANSFORMS_LIMIT_BYTES,
    images_title,
    split_images,
    tokenizer_version,
)

__all__ = [
    "AUGMENTATION_VERSION",
    "DEFAULT_RUN_BYTES",
    "DEFAULT_SHUFFLE_BYTES",
    "IMAGES",
    "LEAST_BUCKETS",
    "LINE_INVERSES",
    "MAX_ACCUMULATED",
    "MOST_BUCKETS",
    "MOST_BUCKET_SAMPLES",
    "NETWORK_ROUNDS",
    "NUMBER_LIMIT",
    "ORDER_VERSION",
    "TOKENIZER",
    "TOKEN_LIMIT_BYTES",
    "TOKEN_VERSION",
    "TRANSFORMS_LIMIT_BYTES",
    "AnyOrder",
    "Batching",
    "Buckets",
    "Choice",
    "DealSpec",
    "EndMode",
    "EpochPlan",
    "Locate",
    "MixtureDataset",
    "MixtureOrder",
    "MixtureSpec",
    "Order",
    "OrderSpec",
    "Pieces",
    "RankBatch",
    "Row",
    "Schedule",
    "SequenceLayout",
    "ShardTable",
    "Skips",
    "Stages",
    "Step",
    "Stretches",
    "Subset",
    "SubsetMixtureOrder",
    "SubsetOrder",
    "Token",
    "TokenEncoder",
    "Walk",
    "Window",
    "batch_sample_ids",
    "buckets_text",
    "check_sizes",
    "check_skips",
    "check_speeds",
    "check_within",
    "combined_fingerprint",
    "deal_evenly",
    "decode_token",
    "dump_mixture",
    "encode_token",
    "epoch_positions",
    "find_rows",
    "images_title",
    "join_skips",
    "joined_digest",
    "linear",
    "load_mixture",
    "mixture_differences",
    "mixture_order_of",
    "network_sides",
    "order_of",
    "part_edges_of",
    "piecewise",
    "rank_batches",
    "sample_keys",
    "slices_of",
    "spec_differences",
    "split_buckets",
    "split_images",
    "stages_of",
    "table_of",
    "tokenizer_version",
    "transform_keys",
    "uniform_draws",
    "walk_tables",
]
