#include "server/rpc/select_request.h"

#include <cstring>
#include <string>
#include <string_view>

#include "absl/strings/str_format.h"
#include "client/grpc/channel_stub.h"
#include "proto/base/status.h"
#include "transport/wire_score.h"

namespace ckv {
namespace {

absl::Status CheckSize(std::string_view what, const std::string& bytes, uint64_t due) {
  if (bytes.size() == due) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %d bytes, expected %d", what, bytes.size(), due));
}

void TakeFloats(const std::string& bytes, std::vector<float>& to) {
  to.resize(bytes.size() / sizeof(float));
  if (!to.empty()) std::memcpy(to.data(), bytes.data(), to.size() * sizeof(float));
}

}  // namespace

v1::AttendRequest ChunkNamesOf(const v1::SelectRowsRequest& request) {
  v1::AttendRequest names;
  names.set_corpus(request.corpus());
  if (request.has_geometry()) *names.mutable_geometry() = request.geometry();
  names.set_tenant(request.tenant());
  *names.mutable_chunks() = request.chunks();
  names.set_chunk_begin(request.chunk_begin());
  names.set_chunk_end(request.chunk_end());
  names.set_corpus_version(request.corpus_version());
  return names;
}

absl::StatusOr<SelectRowsCall> SelectCallOf(const v1::SelectRowsRequest& request,
                                            const Geometry& geometry, SelectMemory& memory) {
  if (!geometry.index.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("select: %s has no index keys", geometry.ToString()));
  }
  const uint64_t tokens = request.token_count(), heads = geometry.index->heads;
  if (tokens == 0 || tokens > kScoreTokenCountMax || request.k() == 0 ||
      request.k() > kIndexTopMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("select: %d rows of %d tokens, 1 to %d of 1 to %d can be", request.k(),
                        tokens, kIndexTopMax, kScoreTokenCountMax));
  }
  if (tokens * request.k() * sizeof(int32_t) > kMessageBytesMax / 2) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "select: %d rows of %d tokens do not fit a message: send fewer tokens in a request",
        request.k(), tokens));
  }
  SelectRowsCall call;
  switch (request.q_dtype()) {
    case v1::INDEX_QUERY_DTYPE_UNSPECIFIED:
    case v1::INDEX_QUERY_DTYPE_BF16:
      call.queries.dtype = IndexQueryDtype::kBf16;
      break;
    case v1::INDEX_QUERY_DTYPE_FP8:
      call.queries.dtype = IndexQueryDtype::kFp8;
      break;
    default:
      return absl::InvalidArgumentError("q_dtype: unknown");
  }
  CKV_RETURN_IF_ERROR(
      CheckSize("q", request.q(), tokens * call.queries.token_bytes(*geometry.index)));
  CKV_RETURN_IF_ERROR(CheckSize("weights", request.weights(), tokens * heads * sizeof(float)));
  if (request.own_scores().size() % (tokens * sizeof(float)) != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "own_scores: %d bytes are not floats of %d tokens", request.own_scores().size(), tokens));
  }
  TakeFloats(request.weights(), memory.weights);
  TakeFloats(request.own_scores(), memory.own_scores);
  call.layer = request.layer();
  call.queries.q = reinterpret_cast<const std::byte*>(request.q().data());
  call.queries.weights = memory.weights.data();
  call.queries.tokens = request.token_count();
  call.k = request.k();
  call.own_scores = memory.own_scores;
  return call;
}

}  // namespace ckv
