// Makes the queries of c_client.c through the C++ client, and writes the same file.
//
//   cc_client DIRECTORY CORPUS FILE

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/grpc/directory_stub.h"
#include "client/grpc/holder_stub.h"
#include "client/requester.h"
#include "tests/client/bindings/c/scenario.h"

namespace ckv {
namespace {

void Require(const absl::Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "cc_client: %s: %s\n", what, status.ToString().c_str());
  std::exit(1);
}

template <typename T>
T Require(absl::StatusOr<T> made, const char* what) {
  Require(made.status(), what);
  return *std::move(made);
}

Instant Soon() { return Clock::Real()->Now() + std::chrono::seconds(30); }

struct Program {
  Requester* requester = nullptr;
  std::shared_ptr<const Corpus> corpus;
  FILE* out = nullptr;
  std::vector<uint16_t> q;
  std::vector<float> o, m, l;

  const Geometry& geometry() const { return corpus->geometry; }
  PartialView view() { return {o.data(), m.data(), l.data(), PartialDtype::kF32}; }
  QueryView Queries(uint32_t layer) {
    FillBf16(q.data(), q.size(), layer + 1);
    return {q.data(), kRows, geometry().d_qk};
  }
  void Answered() { WriteAnswer(out, o.data(), m.data(), l.data(), geometry().d_v); }
};

void DescribeCorpus(Program& p) {
  const Geometry& g = p.geometry();
  WriteAll(p.out, g.model.data(), g.model.size());
  const uint64_t numbers[] = {p.corpus->version,
                              p.corpus->token_count(),
                              p.corpus->chunks.size(),
                              g.layers,
                              g.d_qk,
                              g.d_v,
                              g.d_rope,
                              g.row_bytes(),
                              static_cast<uint64_t>(g.rope.style),
                              static_cast<uint64_t>(g.dtype),
                              static_cast<uint64_t>(1e6 * double{g.softmax_scale})};
  WriteAll(p.out, numbers, sizeof(numbers));
  for (const ChunkPlacement& chunk : p.corpus->chunks) WriteAll(p.out, chunk.id.bytes.data(), 32);
  for (const ChunkPlacement& chunk : p.corpus->chunks) {
    const uint32_t token_count = chunk.token_count;
    WriteAll(p.out, &token_count, sizeof(token_count));
  }
  for (const ChunkPlacement& chunk : p.corpus->chunks) {
    const uint64_t position = chunk.position;
    WriteAll(p.out, &position, sizeof(position));
  }
}

void AttendParts(Program& p) {
  for (uint32_t layer = 0; layer < p.geometry().layers; ++layer) {
    AttendCall call;
    call.corpus = p.corpus;
    call.layer = layer;
    call.q = p.Queries(layer);
    call.wire = PartialDtype::kF32;
    call.deadline = Soon();
    Require(p.requester->Attend(call, p.view(), nullptr), "attend");
    p.Answered();
  }
  const ChunkUse chunks[] = {{2, -5}, {0, kShift}};
  AttendCall call;
  call.corpus = p.corpus;
  call.chunks = chunks;
  call.layer = 1;
  call.q = p.Queries(1);
  call.deadline = Soon();
  Require(p.requester->Attend(call, p.view(), nullptr), "attend chunks");
  p.Answered();

  std::vector<ChunkUse> moved;
  for (uint32_t i = 0; i < p.corpus->chunks.size(); ++i) moved.push_back({i, kShift});
  int32_t selected[kRows / kHeads * kSelected];
  FillSelection(selected, p.corpus->token_count(), 7);
  call.chunks = moved;
  call.layer = 0;
  call.q = p.Queries(0);
  call.wire = PartialDtype::kF32;
  call.selection = {selected, kSelected, kHeads};
  Require(p.requester->Attend(call, p.view(), nullptr), "attend a selection");
  p.Answered();
}

void AttendContexts(Program& p, ContextPolicy policy) {
  std::vector<ChunkUse> moved;
  for (uint32_t i = 0; i < p.corpus->chunks.size(); ++i) moved.push_back({i, kShift});
  const ContextPart part = {p.corpus, moved};
  const Context context =
      Require(p.requester->Open({.parts = {&part, 1}, .policy = policy}, Soon()), "open a context");
  std::vector<uint16_t> own_rows(size_t{kOwnTokens} * p.geometry().d_qk);
  uint32_t visible[kRows];
  int32_t selected[kSelected * kRows / kHeads];
  FillBf16(own_rows.data(), own_rows.size(), 99);
  FillVisible(visible);
  FillSelection(selected, p.corpus->token_count(), 11);
  const OwnRows own = {
      {reinterpret_cast<const std::byte*>(own_rows.data()), kOwnTokens, p.geometry().row_bytes()},
      visible};
  const Segment segments[] = {
      {.row_begin = 0, .row_count = kRows / 2, .context = &context, .own = {&own, 1}},
      {.row_begin = kRows / 2,
       .row_count = kRows / 2,
       .context = &context,
       .selection = {selected, kSelected, kHeads}}};
  LayerCall call;
  call.segments = segments;
  call.wire = PartialDtype::kF32;
  const auto attend = [&](uint32_t layer, int times) {
    call.layer = layer;
    call.q = p.Queries(layer);
    call.deadline = Soon();
    Require(p.requester->Attend(call, p.view()), "attend contexts");
    for (int i = 0; i < times; ++i) p.Answered();
  };
  for (uint32_t layer = 0; layer < p.geometry().layers; ++layer) attend(layer, 2);
  attend(0, 1);
}

// Rows of a call as [layer][token][width].
void FetchRows(Program& p, FetchCall call) {
  call.corpus = p.corpus;
  call.deadline = Soon();
  const uint32_t width = call.columns.bytes == 0 ? p.geometry().row_bytes() : call.columns.bytes;
  std::vector<uint64_t> first_token = {0};
  for (uint32_t i = call.chunk_begin; i < call.chunk_end; ++i)
    first_token.push_back(first_token.back() + p.corpus->chunks[i].token_count);
  const uint64_t tokens = first_token.back();
  std::vector<std::byte> rows((call.tensor_end - call.tensor_begin) * tokens * width);
  Require(p.requester->Fetch(call,
                             [&](const FetchedRows& run) {
                               const uint64_t token =
                                   first_token[run.chunk - call.chunk_begin] + run.token_begin;
                               const uint64_t row =
                                   (run.tensor - call.tensor_begin) * tokens + token;
                               std::memcpy(&rows[row * width], run.rows.data(), run.rows.size());
                               return absl::OkStatus();
                             }),
          "fetch");
  WriteAll(p.out, rows.data(), rows.size());
}

void Fetch(Program& p) {
  const auto chunks = static_cast<uint32_t>(p.corpus->chunks.size());
  const uint32_t layers = p.geometry().layers;
  FetchCall all;
  all.chunk_end = chunks;
  all.tensor_end = layers;
  FetchCall moved = all;
  moved.position = kShift;
  FetchCall some;
  some.chunk_begin = 1;
  some.chunk_end = 3;
  some.tensor_begin = 1;
  some.tensor_end = 2;
  some.position = 1000;
  FetchCall slice = all;
  slice.columns = {8, 16};
  FetchRows(p, all);
  FetchRows(p, some);
  FetchRows(p, moved);
  FetchRows(p, slice);
  FetchRows(p, all);
}

void Run(const char* address, const char* corpus, const char* file) {
  Clock* const clock = Clock::Real();
  DirectoryStub directory(address, clock);
  HolderStubFactory holders(clock);
  RequesterOptions options;
  options.id = "cc_client";
  const auto requester = Require(Requester::Create(options, &directory, &holders), "create");
  Program p;
  p.requester = requester.get();
  p.corpus = Require(requester->Resolve(corpus, "", Soon()), "resolve");
  p.out = std::fopen(file, "wb");
  p.q.resize(size_t{kRows} * p.geometry().d_qk);
  p.o.resize(size_t{kRows} * p.geometry().d_v);
  p.m.resize(kRows);
  p.l.resize(kRows);
  DescribeCorpus(p);
  AttendParts(p);
  AttendContexts(p, ContextPolicy::kRoute);
  AttendContexts(p, ContextPolicy::kCache);
  Fetch(p);
  std::fclose(p.out);
}

}  // namespace
}  // namespace ckv

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: cc_client DIRECTORY CORPUS FILE\n");
    return 2;
  }
  ckv::Run(argv[1], argv[2], argv[3]);
  return 0;
}
