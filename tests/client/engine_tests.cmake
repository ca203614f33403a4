# Tests of the reference engine and of ckvctl's parts; included by CMakeLists.txt.
ckv_test(linear_test DEPS ckv_engine)
ckv_test(engine_test DEPS ckv_engine LABELS engine)
if(CKV_GRPC)
  ckv_test(ctl_test DEPS ckv_ctl)
endif()
