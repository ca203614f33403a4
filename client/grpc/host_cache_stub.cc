#include "client/grpc/host_cache_stub.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/grpc/channel_stub.h"
#include "client/grpc/grpc_status.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/convert.h"

namespace ckv {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::min();

}  // namespace

HostCacheStub::HostCacheStub(std::string address, Clock* clock)
    : address_(std::move(address)),
      clock_(clock),
      stub_(v1::RequesterService::NewStub(MakeChannel(address_))),
      silent_since_ns_(kNever) {}

absl::StatusOr<std::string> HostCacheStub::Request(const v1::ReplicateRequest& request,
                                                   Instant deadline) {
  grpc::ClientContext context;
  SetDeadline(context, *clock_, deadline, kCopyMax);
  v1::ReplicateReply reply;
  CKV_RETURN_IF_ERROR(FromPeer(stub_->Replicate(&context, request, &reply),
                               absl::StrFormat("cache of this host, %s: Replicate", address_)));
  if (reply.refused_count() > 0) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("cache of this host, %s: %d chunks are not kept: the directory has enough "
                        "members for them",
                        address_, reply.refused_count()));
  }
  if (!ValidateName("holder", reply.holder()).ok() || reply.holder().empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("cache of this host, %s: it names no holder", address_));
  }
  return reply.holder();
}

absl::StatusOr<std::shared_ptr<const Corpus>> HostCacheStub::Keep(
    const std::shared_ptr<const Corpus>& corpus, std::span<const uint32_t> chunks,
    Instant deadline) {
  const int64_t silent = silent_since_ns_.load(std::memory_order_relaxed);
  if (silent != kNever && clock_->Now() - Instant{silent} < kSilentFor) {
    return absl::UnavailableError(
        absl::StrFormat("cache of this host, %s: it did not answer a moment ago", address_));
  }
  const auto kept = std::make_shared<Corpus>(*corpus);
  for (size_t begin = 0; begin < chunks.size(); begin += kIdsPerCallMax) {
    const size_t end = std::min(chunks.size(), begin + kIdsPerCallMax);
    v1::ReplicateRequest request;
    const Duration left = std::clamp(deadline - clock_->Now(), Duration(0), Duration(kCopyMax));
    request.set_timeout_ms(1 + static_cast<uint32_t>(left / std::chrono::milliseconds(1)));
    request.set_tenant(corpus->tenant);
    *request.mutable_geometry() = ToProto(corpus->geometry);
    for (size_t i = begin; i < end; ++i)
      request.add_ids(std::string(corpus->chunks[chunks[i]].id.AsBytes()));
    const absl::StatusOr<std::string> holder = Request(request, deadline);
    // One that hangs is unavailable, too: its connection is found silent. One that is late copies.
    if (absl::IsUnavailable(holder.status())) {
      silent_since_ns_.store(clock_->Now().ns, std::memory_order_relaxed);
      Log().warn("{}; rows are fetched from their holders", holder.status().ToString());
    }
    CKV_RETURN_IF_ERROR(holder.status());
    for (size_t i = begin; i < end; ++i) {
      kept->chunks[chunks[i]].set_holders({HolderId{*holder}});
      kept->chunks[chunks[i]].set_leased({});
    }
  }
  return kept;
}

}  // namespace ckv
