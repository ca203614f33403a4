#include "server/rpc/trace_interceptor.h"

#include <grpcpp/grpcpp.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "client/grpc/grpc_status.h"
#include "proto/base/log.h"

namespace ckv {
namespace {

using grpc::experimental::InterceptionHookPoints;
using Received = std::multimap<grpc::string_ref, grpc::string_ref>;

constexpr std::string_view kRequesterPrefix = "/ckv.v1.RequesterService/";
// Our services are synchronous but for streams both ways. Those of gRPC, as health, are of the
// callback API.
constexpr std::string_view kOurPrefix = "/ckv.v1.";

// The trace of the metadata, if there is one, and only one.
std::optional<TraceContext> TraceIn(const Received& metadata) {
  const auto [begin, end] = metadata.equal_range(kTraceparentKey);
  if (begin == end || std::next(begin) != end) return std::nullopt;
  return ParseTraceparent({begin->second.data(), begin->second.size()});
}

struct TraceTools {
  std::function<bool()> sample;
  SpanSink* spans = nullptr;
  const Clock* clock = nullptr;
};

// Lives as long as its call.
class TraceInterceptor final : public grpc::experimental::Interceptor {
 public:
  TraceInterceptor(grpc::experimental::ServerRpcInfo* info, const TraceTools& tools)
      : method_(info->method()),
        sync_(std::string_view(info->method()).starts_with(kOurPrefix) &&
              info->type() != grpc::experimental::ServerRpcInfo::Type::BIDI_STREAMING),
        of_requester_(std::string_view(info->method()).starts_with(kRequesterPrefix)),
        tools_(tools) {}
  ~TraceInterceptor() override { Leave(); }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA))
      Begin(methods->GetRecvInitialMetadata());
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) End(*methods);
    methods->Proceed();
  }

 private:
  void Begin(Received* metadata) {
    if (metadata == nullptr) return;
    const std::optional<TraceContext> callers = TraceIn(*metadata);
    sent_ = callers.has_value();
    // Requests of a stream begin traces of their own (TraceOfRequest of attend_stream.cc).
    trace_ = sent_ ? *callers : NewTrace(sync_ && of_requester_ && tools_.sample());
    recording_ = sync_ && trace_.sampled && tools_.spans != nullptr;
    if (recording_) {
      span_ = BeginSpan(trace_, method_, SpanKind::kServer, tools_.clock->Now());
      trace_.span_id = span_.span_id;
    }
    if (!sent_ && sync_) {
      text_ = FormatTraceparent(trace_);
      metadata->erase(kTraceparentKey);
      metadata->emplace(kTraceparentKey, text_);
    }
    // The handler of a synchronous call runs on the thread on which this does.
    if (sync_) SetCurrentTrace(&trace_);
  }

  void End(grpc::experimental::InterceptorBatchMethods& methods) {
    Leave();
    if (!trace_.set()) return;
    if (auto* const metadata = methods.GetSendTrailingMetadata(); metadata != nullptr)
      metadata->emplace(kTraceIdKey, ToHex(trace_.trace_id));
    const grpc::Status status = methods.GetSendStatus();
    if (std::exchange(recording_, false)) {
      span_.end = tools_.clock->Now();
      span_.failed = !status.ok();
      if (span_.failed) span_.Set("grpc.status_code", status.error_code());
      tools_.spans->Record(span_);
    }
    if (!status.ok() && of_requester_) LogFailedCall(method_, status, trace_);
    const std::string suffix = TraceSuffix(trace_);
    const bool named = status.error_message().find(suffix) != std::string::npos;
    if (status.ok() || named || (!sent_ && !of_requester_)) return;
    methods.ModifySendStatus(
        grpc::Status(status.error_code(), status.error_message() + suffix, status.error_details()));
  }

  void Leave() {
    if (CurrentTrace() == &trace_) SetCurrentTrace(nullptr);
  }

  const char* const method_;
  const bool sync_;  // its handler stays on one thread
  const bool of_requester_;
  const TraceTools& tools_;
  TraceContext trace_;
  Span span_;  // the call's own, if it is recorded
  bool recording_ = false;
  bool sent_ = false;
  std::string text_;  // the metadata borrows it
};

class TraceInterceptorFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit TraceInterceptorFactory(TraceTools tools) : tools_(std::move(tools)) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    return new TraceInterceptor(info, tools_);
  }

 private:
  const TraceTools tools_;
};

}  // namespace

std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
TraceInterceptors(std::function<bool()> sample, SpanSink* spans, const Clock* clock) {
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> made;
  made.push_back(
      std::make_unique<TraceInterceptorFactory>(TraceTools{std::move(sample), spans, clock}));
  return made;
}

void LogFailedCall(std::string_view method, const grpc::Status& status, const TraceContext& trace) {
  if (status.error_code() == grpc::StatusCode::CANCELLED) return;
  const ScopedTrace scope(trace);
  Log().info(
      "{} failed: {}", method,
      absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message())
          .ToString(absl::StatusToStringMode::kWithNoExtraData));
}

TraceContext TraceOf(const grpc::ServerContextBase& context) {
  return TraceIn(context.client_metadata()).value_or(TraceContext{});
}

}  // namespace ckv
