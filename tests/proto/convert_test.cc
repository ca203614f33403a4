#include "proto/convert.h"
#include "tests/support/named_geometry.h"

#include <gtest/gtest.h>

#include <functional>

namespace ckv {
namespace {

Corpus MakeCorpus() {
  Corpus corpus;
  corpus.name = "gpl-3";
  corpus.tenant = "t";
  corpus.version = 7;
  corpus.replica_count = 3;
  corpus.policy = {.ttl_ms = 5, .quota_bytes = 0, .expires_at_ms = 9};
  corpus.geometry = *NamedGeometry("deepseek-v2-lite");
  corpus.geometry.revision = "604d566";
  for (uint8_t i = 1; i <= 3; ++i) {
    ChunkPlacement chunk;
    chunk.id.bytes[31] = i;
    ChunkId parent;
    parent.bytes[31] = static_cast<uint8_t>(i - 1);
    chunk.set_parent(parent);
    chunk.token_count = i;
    chunk.position = uint64_t{i} << 33;
    chunk.set_holders({{"a"}, {"b"}});
    chunk.set_leased({{"c"}});
    chunk.set_token_hash({uint64_t{i} << 60, i});
    corpus.chunks.push_back(chunk);
  }
  return corpus;
}

// Through bytes, as it travels.
template <typename Message>
Message Sent(const Message& message) {
  Message received;
  EXPECT_TRUE(received.ParseFromString(message.SerializeAsString()));
  return received;
}

void ExpectInvalid(const absl::Status& status, std::string_view what) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what;
  EXPECT_NE(std::string(status.message()).find(what), std::string::npos) << what << ": " << status;
}

TEST(ConvertGeometry, RoundTrip) {
  Geometry v3 = *NamedGeometry("deepseek-v3");
  v3.revision = "r";
  v3.rope.yarn = YarnParams{40, 4097, 33, 2, 0.5, 0.25};  // no two fields alike
  Geometry plain = *NamedGeometry("glm-4.7-flash");
  plain.rope.style = RopeStyle::kHalfSplit;
  plain.d_v = 256;
  plain.d_rope = 32;
  Geometry fp8 = v3;
  fp8.dtype = RowDtype::kFp8DsMla;
  Geometry none = plain;
  none.d_rope = 0;
  none.rope = {RopeStyle::kNone, 0, std::nullopt};
  Geometry indexed = v3;
  indexed.index = IndexShape{.dim = 128,
                             .heads = 64,
                             .dtype = IndexDtype::kInt8,
                             .d_rope = 32,
                             .rope_style = RopeStyle::kInterleaved,
                             .scale = 0.25f};
  for (const Geometry& geometry : {v3, plain, fp8, none, indexed}) {
    const auto back = FromProto(Sent(ToProto(geometry)));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, geometry) << DescribeDifference(*back, geometry);
  }
}

TEST(ConvertGeometry, Refusals) {
  const v1::Geometry good = ToProto(*NamedGeometry("deepseek-v3"));
  const auto refused = [&good](const std::function<void(v1::Geometry&)>& change,
                               std::string_view what) {
    v1::Geometry message = good;
    change(message);
    ExpectInvalid(FromProto(Sent(message)).status(), what);
  };
  refused([](v1::Geometry& g) { g.Clear(); }, "dtype: unknown");
  refused([](v1::Geometry& g) { g.clear_dtype(); }, "dtype: unknown");
  refused([](v1::Geometry& g) { g.set_dtype(static_cast<v1::RowDtype>(99)); }, "dtype: unknown");
  refused([](v1::Geometry& g) { g.set_rope_style(static_cast<v1::RopeStyle>(99)); },
          "rope_style: unknown");
  refused([](v1::Geometry& g) { g.set_layers(UINT32_MAX); }, "layers");
  refused([](v1::Geometry& g) { g.set_softmax_scale(-1); }, "softmax_scale");
  refused([](v1::Geometry& g) { g.mutable_yarn()->Clear(); }, "yarn.factor");
  refused([](v1::Geometry& g) { g.mutable_index()->set_dim(128); }, "index.dtype: unknown");
  refused([](v1::Geometry& g) { g.mutable_index()->set_dtype(v1::INDEX_DTYPE_FP8); }, "index.dim");
  refused(
      [](v1::Geometry& g) {
        g.mutable_index()->set_dtype(v1::INDEX_DTYPE_FP8);
        g.mutable_index()->set_rope_style(static_cast<v1::RopeStyle>(99));
      },
      "rope_style: unknown");
}

TEST(ConvertCorpus, RoundTrip) {
  Corpus empty = MakeCorpus();
  empty.chunks.clear();
  for (const Corpus& corpus : {MakeCorpus(), empty}) {
    const auto back = FromProto(Sent(ToProto(corpus)));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, corpus);
  }
  const Corpus back = *FromProto(ToProto(MakeCorpus()));
  EXPECT_EQ(&back.chunks[0].holders(), &back.chunks[2].holders()) << "they share their members";
}

TEST(ConvertCorpus, AnEmptyParentIsTheZeroParent) {
  v1::Corpus message = ToProto(MakeCorpus());
  message.mutable_chunks(0)->clear_parent();
  EXPECT_EQ(*FromProto(Sent(message)), MakeCorpus());
}

TEST(ConvertCorpus, Refusals) {
  const auto refused = [](const std::function<void(v1::Corpus&)>& change, std::string_view what) {
    v1::Corpus message = ToProto(MakeCorpus());
    change(message);
    ExpectInvalid(FromProto(Sent(message)).status(), what);
  };
  refused([](v1::Corpus& c) { c.clear_name(); }, "no name");
  refused([](v1::Corpus& c) { c.clear_geometry(); }, "geometry");
  refused([](v1::Corpus& c) { c.mutable_chunks(0)->set_id("short"); }, "chunk id: 5 bytes");
  refused([](v1::Corpus& c) { c.mutable_chunks(0)->set_parent("short"); }, "chunk id: 5 bytes");
  refused([](v1::Corpus& c) { c.mutable_chunks(0)->set_id(std::string(32, '\0')); }, "zero id");
  // A placement has fewer bits for these two: they would be other numbers there.
  refused([](v1::Corpus& c) { c.mutable_chunks(0)->set_token_count((1u << 21) + 1); }, "tokens");
  refused([](v1::Corpus& c) { c.mutable_chunks(0)->set_position((uint64_t{1} << 43) + 1); },
          "beyond 2^40");
  refused([](v1::Corpus& c) { c.mutable_chunks(0)->clear_holders(); }, "no holder");
  refused(
      [](v1::Corpus& c) {
        for (int i = 0; i < 1000; ++i) c.mutable_chunks(0)->add_holders(std::to_string(i));
      },
      "1003 holders, limit 8");
  refused([](v1::Corpus& c) { c.mutable_chunks(1)->set_id(c.chunks(0).id()); }, "already");
  refused(
      [](v1::Corpus& c) {
        for (uint32_t i = 0; i < kCorpusChunkCountMax; ++i) c.add_chunks();
      },
      "1048579 chunks, limit 1048576");
}

TEST(ConvertMember, RoundTrip) {
  for (const MemberRole role : {MemberRole::kHolder, MemberRole::kRequester}) {
    for (const char* address : {"127.0.0.1:7000", "[::1]:1", "host.example:65535"}) {
      Member member = {{"h1"}, role, address, {UINT64_MAX}};
      member.domain = {"host-1", "rack_2", "zone.3"};
      member.is_draining = role == MemberRole::kHolder;
      const auto back = FromProto(Sent(ToProto(member)));
      ASSERT_TRUE(back.ok()) << back.status();
      EXPECT_EQ(*back, member);
    }
  }
}

TEST(ConvertMember, Refusals) {
  const auto refused = [](const std::function<void(v1::Member&)>& change, std::string_view what) {
    v1::Member message = ToProto(Member{{"h1"}, MemberRole::kHolder, "a:1", {1}});
    change(message);
    ExpectInvalid(FromProto(Sent(message)).status(), what);
  };
  refused([](v1::Member& m) { m.clear_id(); }, "member: the id");
  refused([](v1::Member& m) { m.set_id(std::string(129, 'a')); }, "member: the id");
  refused([](v1::Member& m) { m.set_id("a b"); }, "member: id");
  refused([](v1::Member& m) { m.mutable_domain()->set_rack("a b"); }, "member: domain.rack");
  refused([](v1::Member& m) { m.mutable_domain()->set_zone(std::string(129, 'z')); },
          "member: domain.zone");
  refused([](v1::Member& m) { m.clear_role(); }, "role: unknown");
  refused([](v1::Member& m) { m.set_role(static_cast<v1::MemberRole>(9)); }, "role: unknown");
  for (const char* address :
       {"", "host", ":1", "host:", "host:0", "host:65536", "host:99999", "host:100000", "host:1x",
        "host:-1", "host:+1", "host:1 ", "ho st:1", "ho\nst:1"}) {
    refused([address](v1::Member& m) { m.set_control_address(address); }, "is not host:port");
  }
  refused([](v1::Member& m) { m.set_control_address(std::string(300, 'h') + ":1"); }, "host:port");
}

TEST(ConvertLatency, RoundTrip) {
  LatencyCounts counts;
  for (const int64_t us : {1, 3, 1000, 60'000'000}) counts.Add(std::chrono::microseconds(us));
  const v1::Latency message = Sent(ToProto("route", counts));
  EXPECT_EQ(message.of(), "route");
  const LatencyCounts back = FromProto(message);
  EXPECT_EQ(back.counts, counts.counts);
  EXPECT_EQ(back.sum_ns, counts.sum_ns);
  EXPECT_EQ(ToProto("none", {}).counts_size(), 0);
}

TEST(ConvertLatency, CountsOfNoBucketAreLong) {
  v1::Latency message;
  for (size_t i = 0; i < LatencyCounts::kBucketCount + 5; ++i) message.add_counts(1);
  const LatencyCounts counts = FromProto(message);
  EXPECT_EQ(counts.counts.front(), 1u);
  EXPECT_EQ(counts.counts.back(), 6u);
}

TEST(ConvertProcessFacts, EachIsSent) {
  ProcessFacts facts;
  facts.version = "0.1.0";
  facts.commit = "3bb4fde8a1c2";
  facts.started_ago_ms = 8;
  const v1::ProcessFacts message = Sent(ToProto(facts));
  EXPECT_EQ(message.version(), facts.version);
  EXPECT_EQ(message.commit(), facts.commit);
  EXPECT_EQ(message.started_ago_ms(), 8u);
}

TEST(ConvertEngineFacts, RoundTripAndCutTexts) {
  EngineFacts facts = {.name = "vllm",
                       .host = "node7",
                       .pid = 7,
                       .model = "3bb4fde8a1c2",
                       .rank = 1,
                       .rank_count = 2,
                       .version = "0.1.0",
                       .started_ago_ms = 8};
  EXPECT_EQ(FromProto(Sent(ToProto(facts))), facts);

  // A program may report anything of itself, and is still listed.
  facts.model = std::string(EngineFacts::kTextBytesMax + 1, 'm');
  facts.name = "\xff";
  const EngineFacts back = FromProto(Sent(ToProto(facts)));
  EXPECT_EQ(back.model, std::string(EngineFacts::kTextBytesMax, 'm'));
  EXPECT_EQ(back.name, "?");
}

TEST(ConvertInt32s, RoundTripAndRefusals) {
  const std::vector<int32_t> values = {0, 1, -1, INT32_MAX, INT32_MIN};
  const std::string bytes = Int32sToBytes(values);
  EXPECT_EQ(bytes.substr(4, 8), std::string("\1\0\0\0\xff\xff\xff\xff", 8));
  EXPECT_EQ(*Int32sFromBytes(bytes, 5), values);
  EXPECT_TRUE(Int32sFromBytes("", 0)->empty());
  ExpectInvalid(Int32sFromBytes(bytes, 4).status(), "5 values, limit 4");
  for (const size_t size : {1u, 2u, 3u, 5u}) {
    ExpectInvalid(Int32sFromBytes(bytes.substr(0, size), 5).status(), "whole number of 32-bit");
  }
}

}  // namespace
}  // namespace ckv
