#include "transport/handshake.h"

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/host/platform.h"

namespace ckv {
namespace {

constexpr uint32_t kOfferMagic = 0x4f564b43;   // "CKVO"
constexpr uint32_t kAnswerMagic = 0x41564b43;  // "CKVA"
constexpr size_t kTextBytesMax = 1024;         // a host name has at most 253, a port 5

// Opens both an offer and an answer; the rest of the bytes is text.
struct NoteHeader {
  uint32_t magic = 0;
  uint16_t version = kHandshakeVersion;
  FabricKind kind = FabricKind::kLoopback;
  uint8_t reserved = 0;
  uint64_t invitation = 0;  // zero in an offer, as is the token
  Token token{};
};
static_assert(sizeof(NoteHeader) == 32 && std::is_trivially_copyable_v<NoteHeader>);

std::string EncodeNote(const NoteHeader& header, std::string_view text) {
  CKV_CHECK(text.size() <= kTextBytesMax);
  std::string note(reinterpret_cast<const char*>(&header), sizeof(header));
  note.append(text);
  return note;
}

absl::StatusOr<NoteHeader> DecodeNote(const char* what, uint32_t magic, FabricKind kind,
                                      std::string_view note) {
  NoteHeader header;
  if (note.size() < sizeof(header) || note.size() > sizeof(header) + kTextBytesMax) {
    return absl::InvalidArgumentError(absl::StrFormat("%s of %d bytes", what, note.size()));
  }
  std::memcpy(&header, note.data(), sizeof(header));
  if (header.magic != magic || header.version != kHandshakeVersion || header.reserved != 0) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: magic 0x%08x version %d, speak %d", what,
                                                      header.magic, header.version,
                                                      kHandshakeVersion));
  }
  if (header.kind != kind) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s of fabric %s (%d), this is %s", what, FabricName(header.kind),
                        static_cast<int>(header.kind), FabricName(kind)));
  }
  return header;
}

}  // namespace

InvitationKey RandomInvitationKey() {
  InvitationKey key;
  key.id = RandomWord();
  RandomBytes(std::as_writable_bytes(std::span(key.token)));
  return key;
}

bool SameToken(const Token& a, const Token& b) noexcept {
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

WelcomeFrame MakeWelcome(const LaneShape& shape) {
  WelcomeFrame frame;
  frame.slot_count = shape.slot_count;
  frame.request_bytes_max = shape.request_bytes_max;
  frame.reply_bytes_max = shape.reply_bytes_max;
  return frame;
}

absl::Status CheckWelcome(const WelcomeFrame& frame, const LaneShape& shape) {
  if (frame.magic != kWelcomeMagic || frame.version != kHandshakeVersion) {
    return absl::InvalidArgumentError(
        absl::StrFormat("welcome: magic 0x%08x version %d", frame.magic, frame.version));
  }
  if (frame.slot_count != shape.slot_count || frame.request_bytes_max != shape.request_bytes_max ||
      frame.reply_bytes_max != shape.reply_bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrFormat("welcome to a lane of %d slots, %d and %d bytes; dialled %d, %d, %d",
                        frame.slot_count, frame.request_bytes_max, frame.reply_bytes_max,
                        shape.slot_count, shape.request_bytes_max, shape.reply_bytes_max));
  }
  return absl::OkStatus();
}

std::string EncodeOffer(FabricKind kind, std::string_view text) {
  NoteHeader header;
  header.magic = kOfferMagic;
  header.kind = kind;
  return EncodeNote(header, text);
}

absl::StatusOr<std::string> DecodeOffer(FabricKind kind, std::string_view offer) {
  CKV_RETURN_IF_ERROR(DecodeNote("offer", kOfferMagic, kind, offer).status());
  return std::string(offer.substr(sizeof(NoteHeader)));
}

std::string EncodeAnswer(FabricKind kind, const Answer& answer) {
  NoteHeader header;
  header.magic = kAnswerMagic;
  header.kind = kind;
  header.invitation = answer.key.id;
  header.token = answer.key.token;
  return EncodeNote(header, answer.address);
}

absl::StatusOr<Answer> DecodeAnswer(FabricKind kind, std::string_view answer) {
  CKV_ASSIGN_OR_RETURN(const NoteHeader header, DecodeNote("answer", kAnswerMagic, kind, answer));
  return Answer{{header.invitation, header.token}, std::string(answer.substr(sizeof(header)))};
}

}  // namespace ckv
