#include "transport/verbs/verbs_wire.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

constexpr uint32_t kControlBit = 1u << 31;
constexpr uint32_t kNumberMax = 0xffffff;  // queue pairs and packets have 24 bits

std::string TextOf(const VerbsEndFrame& end) {
  return std::string(reinterpret_cast<const char*>(&end), sizeof(end));
}

absl::Status CheckEnd(const char* what, const VerbsEndFrame& end) {
  const auto refuse = [what](std::string_view why) {
    return absl::InvalidArgumentError(absl::StrFormat("verbs %s: %s", what, why));
  };
  // 0 and 1 are the subnet's own queue pairs.
  if (end.qp_number < 2 || end.qp_number > kNumberMax) {
    return refuse(absl::StrFormat("queue pair 0x%x", end.qp_number));
  }
  if (end.packet_sequence > kNumberMax) {
    return refuse(absl::StrFormat("packet sequence 0x%x", end.packet_sequence));
  }
  if (end.mtu < 1 || end.mtu > 5) return refuse(absl::StrFormat("MTU code %d", end.mtu));
  if (end.ethernet > 1 || end.reserved != 0) return refuse("reserved bits are set");
  const bool no_gid = std::all_of(end.gid.begin(), end.gid.end(), [](uint8_t b) { return b == 0; });
  if (end.ethernet == 1 && (no_gid || end.gid[0] == 0xff)) {
    return refuse("the GID is none, or a multicast group's");
  }
  if (end.ethernet == 0 && (end.lid == 0 || end.lid >= 0xc000)) {
    return refuse(absl::StrFormat("LID %d is no unicast one", end.lid));
  }
  return ValidateLaneShape({end.slot_count, end.request_bytes_max, end.reply_bytes_max});
}

absl::StatusOr<VerbsEndFrame> DecodeEnd(const char* what, std::string_view text) {
  VerbsEndFrame end;
  if (text.size() != sizeof(end)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("verbs %s: %d bytes, need %d", what, text.size(), sizeof(end)));
  }
  std::memcpy(&end, text.data(), sizeof(end));
  CKV_RETURN_IF_ERROR(CheckEnd(what, end));
  return end;
}

}  // namespace

std::string EncodeVerbsOffer(const VerbsEndFrame& end) {
  return EncodeOffer(FabricKind::kVerbs, TextOf(end));
}

absl::StatusOr<VerbsEndFrame> DecodeVerbsOffer(std::string_view offer) {
  CKV_ASSIGN_OR_RETURN(const std::string text, DecodeOffer(FabricKind::kVerbs, offer));
  CKV_ASSIGN_OR_RETURN(const VerbsEndFrame end, DecodeEnd("offer", text));
  if (end.reply_stride < end.reply_bytes_max || end.reply_stride % 64 != 0 ||
      end.landing % 64 != 0 || end.landing == 0 || end.segment_bytes != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "verbs offer: landing at 0x%x, %d bytes a slot", end.landing, end.reply_stride));
  }
  if (end.landing + uint64_t{end.reply_stride} * end.slot_count < end.landing) {
    return absl::InvalidArgumentError("verbs offer: the landing region wraps");
  }
  return end;
}

std::string EncodeVerbsAnswer(const VerbsAnswer& answer) {
  return EncodeAnswer(FabricKind::kVerbs, {answer.key, TextOf(answer.end)});
}

absl::StatusOr<VerbsAnswer> DecodeVerbsAnswer(std::string_view answer, const VerbsEndFrame& offer) {
  CKV_ASSIGN_OR_RETURN(const Answer decoded, DecodeAnswer(FabricKind::kVerbs, answer));
  CKV_ASSIGN_OR_RETURN(const VerbsEndFrame end, DecodeEnd("answer", decoded.address));
  if (end.generation != offer.generation) {
    return absl::UnavailableError("the verbs answer is to another offer: dial again");
  }
  if (end.slot_count != offer.slot_count || end.request_bytes_max != offer.request_bytes_max ||
      end.reply_bytes_max != offer.reply_bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrFormat("verbs answer for a lane of %d slots, %d and %d bytes; dialled %d, %d, %d",
                        end.slot_count, end.request_bytes_max, end.reply_bytes_max,
                        offer.slot_count, offer.request_bytes_max, offer.reply_bytes_max));
  }
  if (end.segment_bytes < kSegmentBytesMin || end.segment_bytes % 64 != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("verbs answer: segments of %d bytes", end.segment_bytes));
  }
  if (end.ethernet != offer.ethernet) {
    return absl::InvalidArgumentError("verbs answer: RoCE at one end, InfiniBand at the other");
  }
  return VerbsAnswer{decoded.key, end};
}

uint32_t EncodeImmediate(VerbsControl control) noexcept {
  return kControlBit | static_cast<uint32_t>(control);
}

uint32_t EncodeImmediate(uint32_t slot, uint32_t segment_count) noexcept {
  return segment_count << 8 | slot;
}

VerbsImmediate DecodeImmediate(uint32_t immediate) noexcept {
  VerbsImmediate decoded;
  if ((immediate & kControlBit) != 0) {
    decoded.control = static_cast<VerbsControl>(immediate & ~kControlBit);
  } else {
    decoded.slot = immediate & 0xff;
    decoded.segment_count = immediate >> 8;
  }
  return decoded;
}

}  // namespace ckv
