// A client of a serving engine's HTTP API, in vLLM's form. ckvctl uses it to have documents
// prefilled.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/tools/ctl/output.h"
#include "proto/base/clock.h"

namespace ckv::ctl {

struct EngineOptions {
  std::string url;      // "http://host:port", without a path
  std::string api_key;  // sent as a bearer token if not empty
  // The time limit of one call; each prefill is one call.
  Duration timeout = std::chrono::minutes(10);
};

// A model that an engine serves.
struct EngineModel {
  std::string name;
  uint32_t token_count_max = 0;  // maximum per request, including its answer
};

// Thread-safe: each call uses its own connection. A reply has at most kEngineReplyBytesMax bytes.
// Ignores proxy environment variables and does not follow redirects.
//
// Errors of every call name the engine and the call:
//   Unavailable         no server answers there, or the engine cannot serve the call (HTTP 5xx).
//   DeadlineExceeded    no reply within the timeout.
//   InvalidArgument     the engine refuses the request (HTTP 400, 404, 422); includes its reason.
//   PermissionDenied    the engine requires another key (HTTP 401, 403).
//   Internal            the reply does not conform to this API.
class EngineClient {
 public:
  explicit EngineClient(EngineOptions options);

  // Returns the model of this name, or the only model if `name` is empty.
  //   NotFound            the engine does not serve that model; names those that it serves.
  //   InvalidArgument     also: the engine serves several models, and `name` is empty.
  absl::StatusOr<EngineModel> Model(const std::string& name) const;

  // Returns the tokens of a text, from the engine's own tokenizer.
  absl::StatusOr<std::vector<int32_t>> Tokenize(const EngineModel& model,
                                                const std::string& text) const;

  // Makes the engine prefill these tokens and publish them as part of `corpus`. Returns once they
  // are prefilled: the engine publishes in the background.
  //   FailedPrecondition  the engine answered, but has no ckv plug-in.
  absl::Status Prefill(const EngineModel& model, std::span<const int32_t> tokens,
                       const std::string& corpus) const;

 private:
  absl::StatusOr<Json> Call(const std::string& path, const Json* body) const;

  const EngineOptions options_;
};

// Enough for 8 million token ids of seven digits.
inline constexpr size_t kEngineReplyBytesMax = size_t{64} << 20;

}  // namespace ckv::ctl
