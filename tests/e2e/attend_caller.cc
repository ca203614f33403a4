// An engine over gRPC that sends the same query over and over until its stdin ends, to measure what
// a fault elsewhere costs it.
//
//   attend_caller REQUESTER CORPUS D_QK [TIMEOUT_MS]
//
// Prints "answered" after the first answer. At the end it prints one line of JSON: queries made,
// those that failed, those whose answer had other bits than the first one, the first error, and how
// long calls took (tests/bench/field/call_times.h).

#include <grpcpp/grpcpp.h>
#include <poll.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "ckv/v1/requester.grpc.pb.h"
#include "client/grpc/channel_stub.h"
#include "tests/bench/field/call_times.h"

namespace ckv {
namespace {

constexpr uint32_t kRows = 2;
constexpr uint32_t kTimeoutMs = 10'000;  // a user's default
constexpr uint16_t kOne = 0x3f80;        // bf16

bool StdinEnds(int within_ms) {
  pollfd ended = {0, POLLIN, 0};
  return poll(&ended, 1, within_ms) != 0;
}

int Run(const char* requester, const char* corpus, uint32_t d_qk, uint32_t timeout_ms) {
  const auto stub = v1::RequesterService::NewStub(MakeChannel(requester));
  v1::AttendRequest request;
  request.set_corpus(corpus);
  request.set_layer(1);
  request.set_row_count(kRows);
  for (uint32_t i = 0; i < kRows * d_qk; ++i)
    request.mutable_q()->append(reinterpret_cast<const char*>(&kOne), sizeof(kOne));
  request.set_wire(v1::PARTIAL_DTYPE_F32);
  request.set_timeout_ms(timeout_ms);
  uint64_t queries = 0, failed = 0, changed = 0;
  std::string first_error, first_answer;
  ckv_call_times times;
  ckv_call_times_begin(&times);
  for (; !StdinEnds(ckv_call_times_rest_ms(&times)); ++queries) {
    grpc::ClientContext context;
    context.set_deadline(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                      gpr_time_from_millis(2 * timeout_ms, GPR_TIMESPAN)));
    v1::AttendReply reply;
    const double begin = ckv_call_times_now();
    const grpc::Status status = stub->Attend(&context, request, &reply);
    ckv_call_times_add(&times, begin);
    if (!status.ok()) {
      ++failed;
      if (first_error.empty()) first_error = status.error_message();
      continue;
    }
    const std::string answer = reply.o() + reply.m() + reply.l();
    if (first_answer.empty()) {
      first_answer = answer;
      std::printf("answered\n");
      std::fflush(stdout);
    }
    changed += answer != first_answer ? 1 : 0;
  }
  const nlohmann::json said = {
      {"queries", queries}, {"failed", failed}, {"changed", changed}, {"first_error", first_error}};
  const std::string members = said.dump();
  std::printf("%.*s, ", static_cast<int>(members.size()) - 1, members.c_str());
  ckv_call_times_print(&times);
  std::printf("}\n");
  return 0;
}

}  // namespace
}  // namespace ckv

int main(int argc, char** argv) {
  if (argc < 4 || argc > 5) {
    std::fprintf(stderr, "usage: attend_caller REQUESTER CORPUS D_QK [TIMEOUT_MS]\n");
    return 2;
  }
  const auto number = [](const char* text) {
    return static_cast<uint32_t>(std::strtoul(text, nullptr, 10));
  };
  return ckv::Run(argv[1], argv[2], number(argv[3]), argc == 5 ? number(argv[4]) : ckv::kTimeoutMs);
}
