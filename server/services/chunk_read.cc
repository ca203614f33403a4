#include "server/services/chunk_read.h"

#include <algorithm>
#include <vector>

#include "client/grpc/channel_stub.h"
#include "proto/base/status.h"
#include "proto/base/stripe.h"

namespace ckv {
namespace {

// Tokens of a message: whole stripes, so that none of a file is read and checked twice. A row has
// at most 2 KiB, so a stripe always fits.
uint32_t TokensPerReply(uint64_t row_bytes) {
  const auto tokens = static_cast<uint32_t>(kMessageRowsBytesMax / row_bytes);
  return tokens / kStripeTokens * kStripeTokens;
}
static_assert(kMessageRowsBytesMax >= size_t{kStripeTokens} * kRowWidthMax * 2);

}  // namespace

absl::Status ChunkReads::Run(const ChunkId& id, const Geometry& geometry, std::string_view tenant,
                             const Peer& peer) {
  CKV_ASSIGN_OR_RETURN(ServiceGate::Stream stream, gate_.Enter(peer.cancel, &reads_));
  return Send(id, geometry, tenant, peer, stream);
}

absl::Status ChunkReads::Send(const ChunkId& id, const Geometry& geometry, std::string_view tenant,
                              const Peer& peer, ServiceGate::Stream& stream) {
  const auto check_lease = [this] {
    return holder_.lease().LiveAt(clock_.Now())
               ? absl::OkStatus()
               : absl::UnavailableError("this holder has no live lease");
  };
  CKV_RETURN_IF_ERROR(check_lease());
  CKV_ASSIGN_OR_RETURN(const ChunkLocator locator, holder_.table().Find(id, geometry, tenant));
  CKV_ASSIGN_OR_RETURN(const ChunkRows rows, holder_.store().OpenRows(locator));
  const uint32_t token_count = rows.info().token_count();
  std::vector<std::byte> buffer;
  for (uint32_t t = 0; t < geometry.tensor_count(); ++t) {
    const uint64_t row_bytes = geometry.tensor_row_bytes(t);
    const uint32_t reply_tokens = TokensPerReply(row_bytes);
    buffer.resize(std::min(token_count, reply_tokens) * row_bytes);
    for (uint32_t begin = 0; begin < token_count; begin += reply_tokens) {
      const uint32_t count = std::min(reply_tokens, token_count - begin);
      const auto part = std::span(buffer).first(count * row_bytes);
      CKV_RETURN_IF_ERROR(check_lease());
      CKV_RETURN_IF_ERROR(rows.Read(t, begin, count, part));
      if (!stream.BeginWait(clock_.Now() + kReadProgressMax)) return ServiceGate::ClosedError();
      const bool sent = !peer.gone() && peer.send(t, begin * row_bytes, part);
      stream.EndWait();
      if (gate_.closed()) return ServiceGate::ClosedError();
      if (!sent) return absl::CancelledError("read: the caller takes no more rows");
    }
  }
  return absl::OkStatus();
}

}  // namespace ckv
