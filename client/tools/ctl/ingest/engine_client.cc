// Calls an engine's HTTP API with libcurl, on the calling thread. Call sends one request and parses
// the JSON of the reply: it limits the reply's size, and turns HTTP errors into statuses with the
// engine's reason. Model, Tokenize and Prefill are the three requests.

#include "client/tools/ctl/ingest/engine_client.h"

#include <curl/curl.h>

#include <memory>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "proto/base/status.h"
#include "proto/token_id.h"

namespace ckv::ctl {
namespace {

constexpr long kConnectMs = 10'000;
constexpr size_t kReasonBytesMax = 500;

struct FreeCurl {
  void operator()(CURL* curl) const { curl_easy_cleanup(curl); }
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

struct Reply {
  std::string body;
  bool too_large = false;
};

size_t Take(char* data, size_t size, size_t count, void* to) {
  auto& reply = *static_cast<Reply*>(to);
  const size_t bytes = size * count;
  if (bytes > kEngineReplyBytesMax - reply.body.size()) {
    reply.too_large = true;
    return 0;  // ends the transfer
  }
  reply.body.append(data, bytes);
  return bytes;
}

// Returns an engine's reason: {"error": {"message": ...}}, or another text.
std::string ReasonIn(const std::string& body) {
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (json.is_object() && json.contains("error")) {
    const Json& error = json["error"];
    if (error.is_object() && error.contains("message") && error["message"].is_string())
      return error["message"].get<std::string>().substr(0, kReasonBytesMax);
  }
  return body.substr(0, kReasonBytesMax);
}

absl::Status HttpError(long code, const std::string& body, const std::string& context) {
  const std::string text = absl::StrFormat("%s: HTTP %d: %s", context, code, ReasonIn(body));
  if (code == 401 || code == 403) {
    return absl::PermissionDeniedError(text +
                                       "\n  VLLM_API_KEY in the environment is the key it gets");
  }
  if (code == 400 || code == 404 || code == 422) return absl::InvalidArgumentError(text);
  if (code >= 500) return absl::UnavailableError(text);
  return absl::InternalError(text);
}

absl::Status NotTheApi(const std::string& context, std::string_view what) {
  return absl::InternalError(
      absl::StrFormat("%s: %s\n  is this the address of an OpenAI server of vLLM?", context, what));
}

void StartCurl() {
  [[maybe_unused]] static const CURLcode started = curl_global_init(CURL_GLOBAL_DEFAULT);
}

}  // namespace

EngineClient::EngineClient(EngineOptions options) : options_(std::move(options)) { StartCurl(); }

absl::StatusOr<Json> EngineClient::Call(const std::string& path, const Json* body) const {
  const std::string url = options_.url + path;
  const std::string context = absl::StrFormat("engine at %s: %s", options_.url, path);
  const std::unique_ptr<CURL, FreeCurl> curl(curl_easy_init());
  if (curl == nullptr) return absl::ResourceExhaustedError(context + ": no memory");
  std::unique_ptr<curl_slist, FreeCurl> headers(
      curl_slist_append(nullptr, "Content-Type: application/json"));
  if (!options_.api_key.empty()) {
    const std::string key = "Authorization: Bearer " + options_.api_key;
    headers.reset(curl_slist_append(headers.release(), key.c_str()));
  }
  const std::string text = body == nullptr ? "" : body->dump();
  Reply reply;
  char reason[CURL_ERROR_SIZE] = "";
  CURL* const one = curl.get();
  const auto timeout_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(options_.timeout).count();
  curl_easy_setopt(one, CURLOPT_URL, url.c_str());
  curl_easy_setopt(one, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(one, CURLOPT_PROXY, "");
  curl_easy_setopt(one, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(one, CURLOPT_CONNECTTIMEOUT_MS, kConnectMs);
  curl_easy_setopt(one, CURLOPT_TIMEOUT_MS, static_cast<long>(timeout_ms));
  curl_easy_setopt(one, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(one, CURLOPT_ERRORBUFFER, reason);
  curl_easy_setopt(one, CURLOPT_WRITEFUNCTION, &Take);
  curl_easy_setopt(one, CURLOPT_WRITEDATA, &reply);
  if (body != nullptr) {
    curl_easy_setopt(one, CURLOPT_POSTFIELDS, text.c_str());
    curl_easy_setopt(one, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(text.size()));
  }
  const CURLcode done = curl_easy_perform(one);
  if (reply.too_large) {
    return absl::InternalError(
        absl::StrFormat("%s: an answer of more than %d bytes", context, kEngineReplyBytesMax));
  }
  if (done == CURLE_OPERATION_TIMEDOUT)
    return absl::DeadlineExceededError(absl::StrCat(context, ": ", reason));
  if (done == CURLE_URL_MALFORMAT || done == CURLE_UNSUPPORTED_PROTOCOL) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--engine %s: %s\n  it is http://HOST:PORT", options_.url, reason));
  }
  if (done != CURLE_OK) {
    return absl::UnavailableError(absl::StrFormat(
        "%s: %s\n  is the engine up? if so, /health on the port of `vllm serve` answers", context,
        reason));
  }
  long code = 0;
  curl_easy_getinfo(one, CURLINFO_RESPONSE_CODE, &code);
  if (code != 200) return HttpError(code, reply.body, context);
  Json json = Json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return NotTheApi(context, "the answer is no JSON object");
  return json;
}

absl::StatusOr<EngineModel> EngineClient::Model(const std::string& name) const {
  CKV_ASSIGN_OR_RETURN(const Json said, Call("/v1/models", nullptr));
  const std::string context = absl::StrFormat("engine at %s: /v1/models", options_.url);
  if (!said.contains("data") || !said["data"].is_array())
    return NotTheApi(context, "the answer has no list of models");
  std::vector<EngineModel> models;
  std::vector<std::string> names;
  for (const Json& one : said["data"]) {
    if (!one.is_object() || !one.contains("id") || !one["id"].is_string()) continue;
    EngineModel model = {one["id"].get<std::string>(), 0};
    if (one.contains("max_model_len") && one["max_model_len"].is_number_unsigned()) {
      const auto count = one["max_model_len"].get<uint64_t>();
      model.token_count_max = static_cast<uint32_t>(std::min<uint64_t>(count, UINT32_MAX));
    }
    if (model.name == name) return model;
    names.push_back(model.name);
    models.push_back(std::move(model));
  }
  if (name.empty() && models.size() == 1) return models[0];
  const std::string served = absl::StrJoin(names, ", ");
  if (!name.empty())
    return absl::NotFoundError(absl::StrFormat("%s: no model '%s'; it serves %s", context, name,
                                               served.empty() ? "none" : served));
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: it serves %s: name one by --model", context, served));
}

absl::StatusOr<std::vector<int32_t>> EngineClient::Tokenize(const EngineModel& model,
                                                            const std::string& text) const {
  const Json body = {{"model", model.name}, {"prompt", text}};
  CKV_ASSIGN_OR_RETURN(const Json said, Call("/tokenize", &body));
  const std::string context = absl::StrFormat("engine at %s: /tokenize", options_.url);
  if (!said.contains("tokens") || !said["tokens"].is_array())
    return NotTheApi(context, "the answer has no tokens");
  std::vector<int32_t> tokens;
  tokens.reserve(said["tokens"].size());
  for (const Json& one : said["tokens"]) {
    if (!one.is_number_unsigned() || one.get<uint64_t>() > INT32_MAX)
      return NotTheApi(context, "a token is no token id");
    tokens.push_back(static_cast<int32_t>(one.get<uint64_t>()));
  }
  return tokens;
}

absl::Status EngineClient::Prefill(const EngineModel& model, std::span<const int32_t> tokens,
                                   const std::string& corpus) const {
  const Json body = {{"model", model.name},
                     {"prompt", std::vector<int32_t>(tokens.begin(), tokens.end())},
                     {"max_tokens", 1},
                     {"temperature", 0},
                     {"kv_transfer_params", {{"ckv", {{"publish", corpus}}}}}};
  CKV_ASSIGN_OR_RETURN(const Json said, Call("/v1/completions", &body));
  const auto params = said.find("kv_transfer_params");
  if (params != said.end() && params->is_object() && params->contains("ckv"))
    return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "engine at %s: it answered, and publishes nothing: it has no plug-in of ckv\n  start it with "
      "--kv-transfer-config and CkvConnector (deploy/handbook/vllm.md)",
      options_.url));
}

}  // namespace ckv::ctl
