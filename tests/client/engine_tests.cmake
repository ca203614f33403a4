# Tests of the reference engine and of ckvctl's parts; included by CMakeLists.txt.
ckv_test(linear_test DEPS ckv_engine)
ckv_test(engine_test DEPS ckv_engine LABELS engine)
if(CKV_GRPC)
  ckv_test(ctl_test DEPS ckv_ctl)
  ckv_test(load_source_test DEPS ckv_ctl)
  ckv_test(corpus_load_test DEPS ckv_ctl ckv_server LABELS services TIMEOUT 120)
  ckv_test(corpus_export_test DEPS ckv_ctl ckv_server LABELS services TIMEOUT 120)
endif()
