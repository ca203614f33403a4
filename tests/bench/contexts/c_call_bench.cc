// Question: what does the C ABI add to a call? Bound: 0.2 us. BM_TakeCall reads a call's structs
// and writes its report, which is all that ckv_attend does in addition to Requester::Attend.

#include <cstdint>
#include <vector>

#include "benchmark/benchmark.h"
#include "client/bindings/c/attend_arguments.h"
#include "client/bindings/c/ckv.h"
#include "client/bindings/c/handles.h"
#include "proto/base/status.h"
#include "tests/bench/contexts/four_holders.h"

namespace ckv::bench {
namespace {

void BM_TakeCall(benchmark::State& state) {
  FourHolders fleet(FabricKind::kShm, {16}, 1);
  ckv_requester requester(nullptr, &fleet.requester(), "");
  const ckv_corpus corpus = {requester.owner, fleet.Resolve()};
  ckv_part part = {};
  part.struct_size = sizeof(part);
  part.corpus = &corpus;
  ckv_context_spec spec = {};
  spec.struct_size = sizeof(spec);
  spec.parts = &part;
  spec.part_count = 1;
  spec.policy = CKV_POLICY_ROUTE;
  ckv_context* context = nullptr;
  CKV_CHECK(ckv_context_open(&requester, &spec, &context) == CKV_OK);

  const auto segment_count = static_cast<uint32_t>(state.range(0));
  const uint32_t row_count = 16 * segment_count;  // one token of 16 heads each
  const Geometry& geometry = fleet.geometry();
  std::vector<uint16_t> q(size_t{row_count} * geometry.d_qk);
  std::vector<float> o(size_t{row_count} * geometry.d_v), m(row_count), l(row_count);
  ckv_own_rows own = {};
  own.struct_size = sizeof(own);
  own.rows = q.data();
  own.row_count = 1;
  std::vector<ckv_segment> segments(segment_count);
  for (uint32_t i = 0; i < segment_count; ++i) {
    segments[i].struct_size = sizeof(ckv_segment);
    segments[i].context = context;
    segments[i].row_begin = 16 * i;
    segments[i].row_count = 16;
    segments[i].own = &own;
    segments[i].own_count = 1;
  }
  ckv_attend_call call = {};
  call.struct_size = sizeof(call);
  call.row_count = row_count;
  call.q = q.data();
  call.o = o.data();
  call.m = m.data();
  call.l = l.data();
  call.segments = segments.data();
  call.segment_count = segment_count;
  ckv_attend_report report = {};
  report.struct_size = sizeof(report);
  for (auto _ : state) {
    c::AttendArguments arguments;
    CKV_CHECK(arguments.Take(&call, &report, *Backend::Cpu()).ok());
    benchmark::DoNotOptimize(arguments.layer_call());
    CKV_CHECK(c::GiveReport(AttendReport(), &report).ok());
    benchmark::ClobberMemory();
  }
  ckv_context_close(context);
}
BENCHMARK(BM_TakeCall)->ArgName("segments")->Arg(1)->Arg(8)->Arg(64);

}  // namespace
}  // namespace ckv::bench

BENCHMARK_MAIN();
