"""What stands for stages of images in the digest of a token."""

from __future__ import annotations

from google.protobuf.message import Message

from headrace.v1 import images_pb2 as pb
from headrace.v1.stages import packed


def image_stage(options: Message) -> bytes:
    """Return what stands for a stage that decodes or mixes images in a token's digest.

    Args:
        options: The options of any stage.

    Returns:
        Bytes as docs/order.md has them; empty for other stages.
    """
    if isinstance(options, pb.DecodeImage):
        same = pb.DecodeImage()
        same.CopyFrom(options)
        same.ClearField("allow_decoder_change")
        return same.SerializeToString(deterministic=True)
    if isinstance(options, pb.MixUp | pb.CutMix):
        # No encoded message starts with a zero.
        return bytes(1) + packed(options).SerializeToString(deterministic=True)
    return b""
