// The HTTP API of a serving engine, as vLLM has it: what ckvctl asks to have documents prefilled.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/ctl/output.h"
#include "proto/base/clock.h"

namespace ckv::ctl {

struct EngineOptions {
  std::string url;      // "http://host:port", without a path
  std::string api_key;  // sent as a bearer token, if any
  // The limit of one call; a prefill is one.
  Duration timeout = std::chrono::minutes(10);
};

// A model that an engine serves.
struct EngineModel {
  std::string name;
  uint32_t token_count_max = 0;  // a request may have, its answer included
};

// Thread-safe: each call has a connection of its own. An answer is at most kEngineReplyBytesMax.
// Proxies of the environment are not used, and redirects are not followed.
//
// Errors of every call name the engine and the call:
//   Unavailable         nobody answers there, or the engine says that it is not able to (HTTP 5xx).
//   DeadlineExceeded    not within the timeout.
//   InvalidArgument     the engine refuses the request (HTTP 400, 404, 422), with its reason.
//   PermissionDenied    it wants another key (HTTP 401, 403).
//   Internal            an answer that is not this API's.
class EngineClient {
 public:
  explicit EngineClient(EngineOptions options);

  // Returns the model of this name, or the only one if `name` is empty.
  //   NotFound            it serves no such model; names those that it serves.
  //   InvalidArgument     also: it serves several, and `name` is empty.
  absl::StatusOr<EngineModel> Model(const std::string& name) const;

  // Returns the tokens of a text, as the engine's own tokenizer has them.
  absl::StatusOr<std::vector<int32_t>> Tokenize(const EngineModel& model,
                                                const std::string& text) const;

  // Has the engine prefill these tokens and publish them as a part of `corpus`. Returns once they
  // are prefilled: the engine publishes in the background.
  //   FailedPrecondition  the engine answered, and has no plug-in of ckv.
  absl::Status Prefill(const EngineModel& model, std::span<const int32_t> tokens,
                       const std::string& corpus) const;

 private:
  absl::StatusOr<Json> Call(const std::string& path, const Json* body) const;

  const EngineOptions options_;
};

// 8 million token ids of seven digits.
inline constexpr size_t kEngineReplyBytesMax = size_t{64} << 20;

}  // namespace ckv::ctl
