// The data that two ends of a verbs lane exchange: offer, answer, hello, and the immediate of every
// message. A peer sends all of it, so it is checked here.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/fabric.h"
#include "transport/handshake.h"

namespace ckv {

// The minimum segment: bytes of one work request of a reply. A device with a lower limit is
// refused.
inline constexpr uint32_t kSegmentBytesMin = 64u << 10;

// The facts about one end that the other needs: the text of an offer and of an answer.
struct VerbsEndFrame {
  std::array<uint8_t, 16> gid{};
  uint32_t qp_number = 0;
  uint32_t packet_sequence = 0;
  uint16_t lid = 0;
  uint8_t mtu = 0;       // ibv_mtu: 1 for 256 bytes to 5 for 4096
  uint8_t ethernet = 0;  // 1 for RoCE
  // The segment size in an answer; zero in an offer.
  uint32_t segment_bytes = 0;
  // A random number of the dialler, repeated in the answer. So an old answer does not match a new
  // queue pair, even if the queue pair's number was used before.
  uint64_t generation = 0;
  uint32_t slot_count = 0;
  uint32_t request_bytes_max = 0;
  uint32_t reply_bytes_max = 0;
  // The landing region of replies: slot i is at landing + i x reply_stride. Zero in an answer.
  uint32_t reply_stride = 0;
  uint64_t landing = 0;
  uint32_t landing_key = 0;
  uint32_t reserved = 0;  // zero
};
static_assert(sizeof(VerbsEndFrame) == 72 && std::is_trivially_copyable_v<VerbsEndFrame>);

std::string EncodeVerbsOffer(const VerbsEndFrame& end);
// Decodes an offer and checks the range of every field except landing_key. For `landing`, it checks
// only that the region is aligned, not at zero, and does not wrap. Wrong values of the two are the
// peer's own risk.
//   InvalidArgument     malformed, or a field is out of range. An offer for another shape is valid
//                       here; the dialler detects it in the answer.
absl::StatusOr<VerbsEndFrame> DecodeVerbsOffer(std::string_view offer);

struct VerbsAnswer {
  InvitationKey key;
  VerbsEndFrame end;
};
std::string EncodeVerbsAnswer(const VerbsAnswer& answer);
// Decodes the answer to `offer`.
//   InvalidArgument     as above, or the lane's shape or link layer is not that of `offer`.
//   Unavailable         the answer is to another offer.
absl::StatusOr<VerbsAnswer> DecodeVerbsAnswer(std::string_view answer, const VerbsEndFrame& offer);

// The dialler's first message: the token proves that it may open the lane.
struct VerbsHello {
  HelloFrame hello;
  uint64_t generation = 0;
};
static_assert(sizeof(VerbsHello) == 40 && std::is_trivially_copyable_v<VerbsHello>);

// The immediate, 32 bits:
//   a request        0 | 23 zeros | slot
//   a reply          0 | 23 bits: whole segments before the last work request | slot
//   anything else    1 | 31 bits: VerbsControl
enum class VerbsControl : uint32_t {
  kHello = 1,    // to the holder, with a VerbsHello
  kWelcome = 2,  // to the requester: the lane was accepted
  kPing = 3,     // to the holder
  kPong = 4,     // to the requester
  kBye = 5,      // either way: the last message
};
struct VerbsImmediate {
  std::optional<VerbsControl> control;
  uint32_t slot = 0;
  uint32_t segment_count = 0;
};
static_assert(kSlotCountMax <= 256);
uint32_t EncodeImmediate(VerbsControl control) noexcept;
uint32_t EncodeImmediate(uint32_t slot, uint32_t segment_count) noexcept;
// Decodes any 32 bits. An unknown control message becomes a value outside the enum.
VerbsImmediate DecodeImmediate(uint32_t immediate) noexcept;

}  // namespace ckv
