BEGIN TRANSACTION;
CREATE TABLE baselines (
	session_id INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	samples_us JSON NOT NULL, 
	latency_us DOUBLE NOT NULL, 
	CONSTRAINT pk_baselines PRIMARY KEY (session_id, position), 
	CONSTRAINT fk_baselines_session_id FOREIGN KEY(session_id) REFERENCES sessions (id)
);
INSERT INTO "baselines" VALUES(3676739893504739,0,'cuBLAS','[10.5, 10.4]',10.45);
CREATE TABLE builds (
	id INTEGER NOT NULL, 
	candidate_id INTEGER NOT NULL, 
	software_id INTEGER NOT NULL, 
	failure_id INTEGER, 
	artifact TEXT, 
	entry TEXT NOT NULL, 
	resources JSON NOT NULL, 
	compiler TEXT NOT NULL, 
	seconds DOUBLE NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_builds PRIMARY KEY (id), 
	CONSTRAINT fk_builds_candidate_id FOREIGN KEY(candidate_id) REFERENCES candidates (id), 
	CONSTRAINT fk_builds_software_id FOREIGN KEY(software_id) REFERENCES software (id), 
	CONSTRAINT fk_builds_failure_id FOREIGN KEY(failure_id) REFERENCES failure_reasons (id)
);
INSERT INTO "builds" VALUES(747300485885079420,7129819668668205159,1727875425114377133,NULL,'/cache/ab12/kernel.so','main_kernel','{"registers": 168}','nvcc 13.0',1.7,'2026-11-21 17:45:51.148140');
INSERT INTO "builds" VALUES(2095089716532913537,6978469513422154964,1727875425114377133,NULL,'/cache/ab12/kernel.so','main_kernel','{"registers": 168}','nvcc 13.0',1.7,'2026-11-21 17:45:51.171203');
INSERT INTO "builds" VALUES(2109124077193458024,285125926965989420,8091934444762338413,NULL,'/cache/ab12/kernel.so','main_kernel','{"registers": 168}','nvcc 13.0',1.7,'2026-11-21 17:45:51.246234');
INSERT INTO "builds" VALUES(3152440651761850159,2400615377077478665,3375631729793160497,NULL,'/cache/ab12/kernel.so','main_kernel','{"registers": 168}','nvcc 13.0',1.7,'2026-11-21 17:45:51.208286');
INSERT INTO "builds" VALUES(3482825085500035321,7129819668668205159,8819828438962037509,NULL,'/cache/ab12/kernel.so','main_kernel','{"registers": 168}','nvcc 13.0',1.7,'2026-11-21 17:45:51.206453');
INSERT INTO "builds" VALUES(3804538613336777242,8039102704443208084,1727875425114377133,5413807556405206368,NULL,'','{}','',0.0,'2026-11-21 17:45:51.171580');
INSERT INTO "builds" VALUES(4417070184504086190,8010345549448274450,1727875425114377133,NULL,'/cache/ab12/kernel.so','main_kernel','{"registers": 168}','nvcc 13.0',1.7,'2026-11-21 17:45:51.169971');
INSERT INTO "builds" VALUES(5330088325322878678,2426347458074032369,1727875425114377133,NULL,'/cache/ab12/kernel.so','main_kernel','{"registers": 168}','nvcc 13.0',1.7,'2026-11-21 17:45:51.170424');
INSERT INTO "builds" VALUES(7000866183898868438,1298544689631845893,1727875425114377133,NULL,'/cache/ab12/kernel.so','main_kernel','{"registers": 168}','nvcc 13.0',1.7,'2026-11-21 17:45:51.145283');
INSERT INTO "builds" VALUES(8659484676512695782,1431742484919777389,1727875425114377133,NULL,'/cache/ab12/kernel.so','main_kernel','{"registers": 168}','nvcc 13.0',1.7,'2026-11-21 17:45:51.148896');
CREATE TABLE candidates (
	id INTEGER NOT NULL, 
	template_id INTEGER NOT NULL, 
	workload_id INTEGER NOT NULL, 
	arch TEXT NOT NULL, 
	config TEXT NOT NULL, 
	CONSTRAINT pk_candidates PRIMARY KEY (id), 
	CONSTRAINT fk_candidates_template_id FOREIGN KEY(template_id) REFERENCES templates (id), 
	CONSTRAINT fk_candidates_workload_id FOREIGN KEY(workload_id) REFERENCES workloads (id)
);
INSERT INTO "candidates" VALUES(285125926965989420,5582214027773854906,6505166275763499695,'x86_64','{"block_m":1,"policy":"square","stages":3,"swizzle":true}');
INSERT INTO "candidates" VALUES(1298544689631845893,6049501879917886272,3340071666506436994,'sm_90a','{"block_m":1,"policy":"square","stages":3,"swizzle":true}');
INSERT INTO "candidates" VALUES(1431742484919777389,6049501879917886272,3340071666506436994,'sm_90a','{"block_m":4,"policy":"square","stages":3,"swizzle":true}');
INSERT INTO "candidates" VALUES(1554558869492963079,6049501879917886272,3340071666506436994,'sm_90a','{"block_m":3,"policy":"square","stages":3,"swizzle":true}');
INSERT INTO "candidates" VALUES(2400615377077478665,6049501879917886272,3340071666506436994,'sm_90a','{"block_m":9,"policy":"square","stages":3,"swizzle":true}');
INSERT INTO "candidates" VALUES(2426347458074032369,6049501879917886272,3340071666506436994,'sm_90a','{"block_m":6,"policy":"square","stages":3,"swizzle":true}');
INSERT INTO "candidates" VALUES(6978469513422154964,6049501879917886272,3340071666506436994,'sm_90a','{"block_m":7,"policy":"square","stages":3,"swizzle":true}');
INSERT INTO "candidates" VALUES(7129819668668205159,6049501879917886272,3340071666506436994,'sm_90a','{"block_m":2,"policy":"square","stages":3,"swizzle":true}');
INSERT INTO "candidates" VALUES(8010345549448274450,6049501879917886272,3340071666506436994,'sm_90a','{"block_m":5,"policy":"square","stages":3,"swizzle":true}');
INSERT INTO "candidates" VALUES(8039102704443208084,6049501879917886272,3340071666506436994,'sm_90a','{"block_m":8,"policy":"square","stages":3,"swizzle":true}');
CREATE TABLE environments (
	id INTEGER NOT NULL, 
	software_id INTEGER NOT NULL, 
	device TEXT NOT NULL, 
	observed JSON NOT NULL, 
	CONSTRAINT pk_environments PRIMARY KEY (id), 
	CONSTRAINT fk_environments_software_id FOREIGN KEY(software_id) REFERENCES software (id)
);
INSERT INTO "environments" VALUES(1365294829681207165,8819828438962037509,'NVIDIA H200','{"driver": "570.1"}');
INSERT INTO "environments" VALUES(1805119967927044372,3375631729793160497,'NVIDIA H200','{}');
INSERT INTO "environments" VALUES(2292217581020912870,8819828438962037509,'NVIDIA H200','{}');
INSERT INTO "environments" VALUES(2866259753063248508,1042573738610853190,'','{}');
INSERT INTO "environments" VALUES(2960402154140416747,1727875425114377133,'NVIDIA H200','{"driver": "570.1"}');
INSERT INTO "environments" VALUES(3373925324357293954,1727875425114377133,'NVIDIA H200','{}');
INSERT INTO "environments" VALUES(5157776371819571985,3375631729793160497,'NVIDIA H200','{"driver": "570.1"}');
INSERT INTO "environments" VALUES(6765826776168529639,8091934444762338413,'AMD EPYC','{"driver": "570.1"}');
INSERT INTO "environments" VALUES(7973982355400489772,1727875425114377133,'NVIDIA H200','{"driver": "580.159.04", "uuid": "GPU-5f7e", "compiler": "nvcc 13.0.88", "torch": "2.13.0", "tilelang": "0.1.15"}');
INSERT INTO "environments" VALUES(8894375580576360949,8091934444762338413,'AMD EPYC','{}');
CREATE TABLE failure_reasons (
	id INTEGER NOT NULL, 
	kind TEXT NOT NULL, 
	message TEXT NOT NULL, 
	detail TEXT NOT NULL, 
	CONSTRAINT pk_failure_reasons PRIMARY KEY (id)
);
INSERT INTO "failure_reasons" VALUES(1179677272499184475,'run_timeout','refused','the tail of its output');
INSERT INTO "failure_reasons" VALUES(3598140065169330606,'wrong_result','refused','the tail of its output');
INSERT INTO "failure_reasons" VALUES(5413807556405206368,'build_error','refused','the tail of its output');
CREATE TABLE measurements (
	id INTEGER NOT NULL, 
	candidate_id INTEGER NOT NULL, 
	environment_id INTEGER NOT NULL, 
	failure_id INTEGER, 
	samples_us JSON NOT NULL, 
	sample_count INTEGER NOT NULL, 
	latency_us DOUBLE, 
	relative_error DOUBLE, 
	protocol JSON NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_measurements PRIMARY KEY (id), 
	CONSTRAINT fk_measurements_candidate_id FOREIGN KEY(candidate_id) REFERENCES candidates (id), 
	CONSTRAINT fk_measurements_environment_id FOREIGN KEY(environment_id) REFERENCES environments (id), 
	CONSTRAINT fk_measurements_failure_id FOREIGN KEY(failure_id) REFERENCES failure_reasons (id)
);
INSERT INTO "measurements" VALUES(1554730534890570385,6978469513422154964,3373925324357293954,1179677272499184475,'[]',0,NULL,NULL,'{}','2026-11-21 17:45:51.171203');
INSERT INTO "measurements" VALUES(4291286462575618449,8010345549448274450,2960402154140416747,NULL,'[7.0]',1,7.0,NULL,'{"l2": "cold", "samples": 1, "graph": false, "flush_factor": 2.5}','2026-11-21 17:45:51.169971');
INSERT INTO "measurements" VALUES(5177226317761469985,2400615377077478665,5157776371819571985,NULL,'[8.0]',1,8.0,0.001,'{"l2": "cold", "samples": 1, "graph": false, "flush_factor": 2.5}','2026-11-21 17:45:51.208286');
INSERT INTO "measurements" VALUES(5638738541196754637,7129819668668205159,2960402154140416747,NULL,'[9.0]',1,9.0,0.001,'{"l2": "cold", "samples": 1, "graph": false, "flush_factor": 2.5}','2026-11-21 17:45:51.148140');
INSERT INTO "measurements" VALUES(7337355665673384595,285125926965989420,6765826776168529639,NULL,'[5.0]',1,5.0,0.001,'{"l2": "cold", "samples": 1, "graph": false, "flush_factor": 2.5}','2026-11-21 17:45:51.246234');
INSERT INTO "measurements" VALUES(7558835900803221020,1298544689631845893,7973982355400489772,NULL,'[10.0, 11.0, 12.0]',3,11.0,0.001,'{"l2": "cold", "samples": 3, "graph": false, "flush_factor": 2.5}','2026-11-21 17:45:51.145283');
INSERT INTO "measurements" VALUES(8481217687987984942,2426347458074032369,3373925324357293954,3598140065169330606,'[]',0,NULL,NULL,'{}','2026-11-21 17:45:51.170424');
INSERT INTO "measurements" VALUES(8709936912716464924,7129819668668205159,1365294829681207165,NULL,'[9.5]',1,9.5,0.001,'{"l2": "cold", "samples": 1, "graph": false, "flush_factor": 2.5}','2026-11-21 17:45:51.206453');
CREATE TABLE predictions (
	id INTEGER NOT NULL, 
	candidate_id INTEGER NOT NULL, 
	target_id INTEGER NOT NULL, 
	software_id INTEGER NOT NULL, 
	model TEXT NOT NULL, 
	stated_model TEXT NOT NULL, 
	latency_us DOUBLE NOT NULL, 
	limiting TEXT NOT NULL, 
	uncertainty DOUBLE NOT NULL, 
	utilization JSON NOT NULL, 
	terms_us JSON NOT NULL, 
	notes JSON NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_predictions PRIMARY KEY (id), 
	CONSTRAINT fk_predictions_candidate_id FOREIGN KEY(candidate_id) REFERENCES candidates (id), 
	CONSTRAINT fk_predictions_target_id FOREIGN KEY(target_id) REFERENCES targets (id), 
	CONSTRAINT fk_predictions_software_id FOREIGN KEY(software_id) REFERENCES software (id)
);
INSERT INTO "predictions" VALUES(143337792316467501,2426347458074032369,838112082303434328,1727875425114377133,'analytical-1','analytical-1',10.0,'matrix',0.1,'{"matrix": 0.9, "dram": 0.4}','{"matrix": 9.0, "launch": 1.0}','["a note"]','2026-11-21 17:45:51.170424');
INSERT INTO "predictions" VALUES(396138186255849796,1431742484919777389,838112082303434328,1727875425114377133,'analytical-1','analytical-1',10.0,'matrix',0.1,'{"matrix": 0.9, "dram": 0.4}','{"matrix": 9.0, "launch": 1.0}','["a note"]','2026-11-21 17:45:51.148896');
INSERT INTO "predictions" VALUES(554304365672669909,1298544689631845893,838112082303434328,1727875425114377133,'analytical-1','analytical-1',10.0,'matrix',0.1,'{"matrix": 0.9, "dram": 0.4}','{"matrix": 9.0, "launch": 1.0}','["a note"]','2026-11-21 17:45:51.145283');
INSERT INTO "predictions" VALUES(2681727919951852516,6978469513422154964,838112082303434328,1727875425114377133,'analytical-1','analytical-1',10.0,'matrix',0.1,'{"matrix": 0.9, "dram": 0.4}','{"matrix": 9.0, "launch": 1.0}','["a note"]','2026-11-21 17:45:51.171203');
INSERT INTO "predictions" VALUES(3338334534749014808,8039102704443208084,838112082303434328,1727875425114377133,'analytical-1','analytical-1',10.0,'matrix',0.1,'{"matrix": 0.9, "dram": 0.4}','{"matrix": 9.0, "launch": 1.0}','["a note"]','2026-11-21 17:45:51.171580');
INSERT INTO "predictions" VALUES(3343645080964030523,7129819668668205159,838112082303434328,1727875425114377133,'analytical-1','analytical-1',10.0,'matrix',0.1,'{"matrix": 0.9, "dram": 0.4}','{"matrix": 9.0, "launch": 1.0}','["a note"]','2026-11-21 17:45:51.148140');
INSERT INTO "predictions" VALUES(4063778541016553187,1298544689631845893,838112082303434328,1042573738610853190,'analytical-1','analytical-1',3.0,'matrix',0.1,'{"matrix": 0.9, "dram": 0.4}','{"matrix": 9.0, "launch": 1.0}','["a note"]','2026-11-21 17:45:51.222172');
INSERT INTO "predictions" VALUES(4117670403407980037,1554558869492963079,838112082303434328,1727875425114377133,'analytical-1','analytical-1',4.5,'matrix',0.1,'{"matrix": 0.9, "dram": 0.4}','{"matrix": 9.0, "launch": 1.0}','["a note"]','2026-11-21 17:45:51.148643');
INSERT INTO "predictions" VALUES(6669377528469041182,8010345549448274450,838112082303434328,1727875425114377133,'analytical-1','analytical-1',10.0,'matrix',0.1,'{"matrix": 0.9, "dram": 0.4}','{"matrix": 9.0, "launch": 1.0}','["a note"]','2026-11-21 17:45:51.169971');
INSERT INTO "predictions" VALUES(6974466805713061166,2400615377077478665,838112082303434328,3375631729793160497,'analytical-1','analytical-1',10.0,'matrix',0.1,'{"matrix": 0.9, "dram": 0.4}','{"matrix": 9.0, "launch": 1.0}','["a note"]','2026-11-21 17:45:51.208286');
INSERT INTO "predictions" VALUES(7652405582254285029,285125926965989420,7203255858014579756,8091934444762338413,'analytical-1','analytical-1',10.0,'matrix',0.1,'{"matrix": 0.9, "dram": 0.4}','{"matrix": 9.0, "launch": 1.0}','["a note"]','2026-11-21 17:45:51.246234');
INSERT INTO "predictions" VALUES(8994444432621277398,7129819668668205159,838112082303434328,8819828438962037509,'analytical-1','analytical-1',10.0,'matrix',0.1,'{"matrix": 0.9, "dram": 0.4}','{"matrix": 9.0, "launch": 1.0}','["a note"]','2026-11-21 17:45:51.206453');
CREATE TABLE sessions (
	id INTEGER NOT NULL, 
	template_id INTEGER NOT NULL, 
	workload_id INTEGER NOT NULL, 
	target_id INTEGER NOT NULL, 
	environment_id INTEGER NOT NULL, 
	context_key TEXT NOT NULL, 
	model TEXT NOT NULL, 
	effort TEXT NOT NULL, 
	seed BIGINT NOT NULL, 
	options JSON NOT NULL, 
	options_key TEXT NOT NULL, 
	state TEXT NOT NULL, 
	owner TEXT NOT NULL, 
	started_at DATETIME NOT NULL, 
	finished_at DATETIME, 
	seconds DOUBLE NOT NULL, 
	flops DOUBLE NOT NULL, 
	min_bytes DOUBLE NOT NULL, 
	census JSON NOT NULL, 
	counts JSON NOT NULL, 
	messages JSON NOT NULL, 
	CONSTRAINT pk_sessions PRIMARY KEY (id), 
	CONSTRAINT fk_sessions_template_id FOREIGN KEY(template_id) REFERENCES templates (id), 
	CONSTRAINT fk_sessions_workload_id FOREIGN KEY(workload_id) REFERENCES workloads (id), 
	CONSTRAINT fk_sessions_target_id FOREIGN KEY(target_id) REFERENCES targets (id), 
	CONSTRAINT fk_sessions_environment_id FOREIGN KEY(environment_id) REFERENCES environments (id)
);
INSERT INTO "sessions" VALUES(3676739893504739,6049501879917886272,3340071666506436994,838112082303434328,3373925324357293954,'bd70b521beff7cb8','analytical-1','quick',3,'{"sampler": "tpe"}','7a3966621523d649','complete','elsewhere|1|1','2026-11-21 17:45:51.125942','2026-11-21 17:45:51.188684',1.5,1000000000.0,1000000.0,'{"size": 10, "legal": 5, "rejected": {"smem": 5}}','{"built": 1, "failed": 3, "measured": 1, "predicted": 1, "verified": 2}','["a message"]');
INSERT INTO "sessions" VALUES(3676739893667861,6049501879917886272,3340071666506436994,838112082303434328,2292217581020912870,'24083718e8a596c8','analytical-1','quick',3,'{"sampler": "tpe"}','7a3966621523d649','interrupted','elsewhere|1|1','2026-11-21 17:45:51.205878','2026-11-21 17:45:51.207335',1.5,1000000000.0,1000000.0,'{"size": 10, "legal": 5, "rejected": {"smem": 5}}','{"verified": 1}','["a message"]');
INSERT INTO "sessions" VALUES(3676739893672652,6049501879917886272,3340071666506436994,838112082303434328,1805119967927044372,'1a6d9ac6937e9142','analytical-1','quick',3,'{"sampler": "tpe"}','7a3966621523d649','complete','elsewhere|1|1','2026-11-21 17:45:51.207875','2026-11-21 17:45:51.208963',1.5,1000000000.0,1000000.0,'{"size": 10, "legal": 5, "rejected": {"smem": 5}}','{"verified": 1}','["a message"]');
INSERT INTO "sessions" VALUES(3676739893702550,6049501879917886272,3340071666506436994,838112082303434328,2866259753063248508,'bc3cf701de98bcdd','analytical-1','quick',3,'{"sampler": "tpe"}','7a3966621523d649','complete','elsewhere|1|1','2026-11-21 17:45:51.221650','2026-11-21 17:45:51.224656',1.5,1000000000.0,1000000.0,'{"size": 10, "legal": 5, "rejected": {"smem": 5}}','{"predicted": 1}','["a message"]');
INSERT INTO "sessions" VALUES(3676739893751623,5582214027773854906,6505166275763499695,7203255858014579756,8894375580576360949,'4f3c717e37cd1ad2','analytical-1','quick',3,'{"sampler": "tpe"}','7a3966621523d649','running','elsewhere|1|1','2026-11-21 17:45:51.245479',NULL,0.0,1000000000.0,1000000.0,'{"size": 10, "legal": 5, "rejected": {"smem": 5}}','{}','[]');
CREATE TABLE software (
	id INTEGER NOT NULL, 
	versions JSON NOT NULL, 
	CONSTRAINT pk_software PRIMARY KEY (id)
);
INSERT INTO "software" VALUES(1042573738610853190,'{"nvcc": "nvcc 13.0.88", "tilelang": "0.1.15"}');
INSERT INTO "software" VALUES(1727875425114377133,'{"driver": "580.159.04", "nvcc": "nvcc 13.0.88", "tilelang": "0.1.15", "torch": "2.13.0"}');
INSERT INTO "software" VALUES(3375631729793160497,'{"driver": "570.1", "nvcc": "nvcc 13.0.88", "tilelang": "0.1.15", "torch": "2.13.0"}');
INSERT INTO "software" VALUES(8091934444762338413,'{"c++": "g++ 12.2.0", "tilelang": "0.1.15"}');
INSERT INTO "software" VALUES(8819828438962037509,'{"driver": "580.159.04", "nvcc": "nvcc 13.0.88", "tilelang": "0.1.15", "torch": "2.12.0"}');
CREATE TABLE targets (
	id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	fingerprint TEXT NOT NULL, 
	arch TEXT NOT NULL, 
	CONSTRAINT pk_targets PRIMARY KEY (id)
);
INSERT INTO "targets" VALUES(838112082303434328,'h200','f00d','sm_90a');
INSERT INTO "targets" VALUES(7203255858014579756,'cpu','f00d','x86_64');
CREATE TABLE templates (
	id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	version TEXT NOT NULL, 
	CONSTRAINT pk_templates PRIMARY KEY (id)
);
INSERT INTO "templates" VALUES(5582214027773854906,'gemv_cpu','0123456789ab');
INSERT INTO "templates" VALUES(6049501879917886272,'matmul_hopper','0123456789ab');
CREATE TABLE tilesight_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT tilesight_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "tilesight_version" VALUES('0001');
CREATE TABLE trials (
	session_id INTEGER NOT NULL, 
	candidate_id INTEGER NOT NULL, 
	prediction_id INTEGER, 
	build_id INTEGER, 
	measurement_id INTEGER, 
	failure_id INTEGER, 
	status TEXT NOT NULL, 
	fingerprint TEXT NOT NULL, 
	lowering_seconds DOUBLE NOT NULL, 
	recorded_at DATETIME NOT NULL, 
	CONSTRAINT pk_trials PRIMARY KEY (session_id, candidate_id), 
	CONSTRAINT fk_trials_session_id FOREIGN KEY(session_id) REFERENCES sessions (id), 
	CONSTRAINT fk_trials_candidate_id FOREIGN KEY(candidate_id) REFERENCES candidates (id), 
	CONSTRAINT fk_trials_prediction_id FOREIGN KEY(prediction_id) REFERENCES predictions (id), 
	CONSTRAINT fk_trials_build_id FOREIGN KEY(build_id) REFERENCES builds (id), 
	CONSTRAINT fk_trials_measurement_id FOREIGN KEY(measurement_id) REFERENCES measurements (id), 
	CONSTRAINT fk_trials_failure_id FOREIGN KEY(failure_id) REFERENCES failure_reasons (id)
)
 WITHOUT ROWID

;
INSERT INTO "trials" VALUES(3676739893504739,1298544689631845893,554304365672669909,7000866183898868438,7558835900803221020,NULL,'verified','fp1',0.0,'2026-11-21 17:45:51.145283');
INSERT INTO "trials" VALUES(3676739893504739,1431742484919777389,396138186255849796,8659484676512695782,NULL,NULL,'built','fp4',0.0,'2026-11-21 17:45:51.148896');
INSERT INTO "trials" VALUES(3676739893504739,1554558869492963079,4117670403407980037,NULL,NULL,NULL,'predicted','fp3',0.25,'2026-11-21 17:45:51.148643');
INSERT INTO "trials" VALUES(3676739893504739,2426347458074032369,143337792316467501,5330088325322878678,8481217687987984942,3598140065169330606,'failed','',0.0,'2026-11-21 17:45:51.170424');
INSERT INTO "trials" VALUES(3676739893504739,6978469513422154964,2681727919951852516,2095089716532913537,1554730534890570385,1179677272499184475,'failed','',0.0,'2026-11-21 17:45:51.171203');
INSERT INTO "trials" VALUES(3676739893504739,7129819668668205159,3343645080964030523,747300485885079420,5638738541196754637,NULL,'verified','fp2',0.0,'2026-11-21 17:45:51.148140');
INSERT INTO "trials" VALUES(3676739893504739,8010345549448274450,6669377528469041182,4417070184504086190,4291286462575618449,NULL,'measured','',0.0,'2026-11-21 17:45:51.169971');
INSERT INTO "trials" VALUES(3676739893504739,8039102704443208084,3338334534749014808,3804538613336777242,NULL,5413807556405206368,'failed','',0.0,'2026-11-21 17:45:51.171580');
INSERT INTO "trials" VALUES(3676739893667861,7129819668668205159,8994444432621277398,3482825085500035321,8709936912716464924,NULL,'verified','fp2',0.0,'2026-11-21 17:45:51.206453');
INSERT INTO "trials" VALUES(3676739893672652,2400615377077478665,6974466805713061166,3152440651761850159,5177226317761469985,NULL,'verified','fp9',0.0,'2026-11-21 17:45:51.208286');
INSERT INTO "trials" VALUES(3676739893702550,1298544689631845893,4063778541016553187,NULL,NULL,NULL,'predicted','fp1',0.25,'2026-11-21 17:45:51.222172');
INSERT INTO "trials" VALUES(3676739893751623,285125926965989420,7652405582254285029,2109124077193458024,7337355665673384595,NULL,'verified','fp1',0.0,'2026-11-21 17:45:51.246234');
CREATE TABLE workload_dims (
	workload_id INTEGER NOT NULL, 
	dim TEXT NOT NULL, 
	size BIGINT NOT NULL, 
	log2 DOUBLE NOT NULL, 
	CONSTRAINT pk_workload_dims PRIMARY KEY (workload_id, dim), 
	CONSTRAINT fk_workload_dims_workload_id FOREIGN KEY(workload_id) REFERENCES workloads (id)
);
INSERT INTO "workload_dims" VALUES(3340071666506436994,'m',4096,12.0);
INSERT INTO "workload_dims" VALUES(3340071666506436994,'n',1024,10.0);
INSERT INTO "workload_dims" VALUES(3340071666506436994,'k',8192,13.0);
INSERT INTO "workload_dims" VALUES(6505166275763499695,'m',777,9.60177078840771);
INSERT INTO "workload_dims" VALUES(6505166275763499695,'k',4096,12.0);
CREATE TABLE workloads (
	id INTEGER NOT NULL, 
	"key" TEXT NOT NULL, 
	operator TEXT NOT NULL, 
	dtype TEXT NOT NULL, 
	dims JSON NOT NULL, 
	attrs JSON NOT NULL, 
	name TEXT, 
	CONSTRAINT pk_workloads PRIMARY KEY (id)
);
INSERT INTO "workloads" VALUES(3340071666506436994,'matmul(m=4096,n=1024,k=8192;splits=2,transposed=true,dtype=bfloat16)','matmul','bfloat16','{"m": 4096, "n": 1024, "k": 8192}','{"transposed": true, "splits": 2}','M0');
INSERT INTO "workloads" VALUES(6505166275763499695,'gemv(m=777,k=4096;dtype=float32)','gemv','float32','{"m": 777, "k": 4096}','{}',NULL);
CREATE INDEX ix_workloads_operator_dtype ON workloads (operator, dtype);
CREATE INDEX ix_workload_dims_dim_log2 ON workload_dims (dim, log2);
CREATE INDEX ix_candidates_workload_id_template_id_arch ON candidates (workload_id, template_id, arch);
CREATE INDEX ix_predictions_candidate_id ON predictions (candidate_id);
CREATE INDEX ix_builds_candidate_id ON builds (candidate_id);
CREATE INDEX ix_measurements_candidate_id ON measurements (candidate_id);
CREATE INDEX ix_sessions_context_key ON sessions (context_key);
CREATE INDEX ix_sessions_workload_id ON sessions (workload_id);
CREATE INDEX ix_trials_candidate_id ON trials (candidate_id);
CREATE VIEW records AS SELECT t.session_id, s.effort, s.state AS session_state, w.operator, w.key AS workload, w.name AS shape, w.dtype, w.dims, w.attrs,
       k.name AS template, k.version AS template_version, g.name AS target, g.fingerprint AS target_fingerprint, c.arch,
       e.device, v.versions AS software, s.model, c.config, t.status,
       p.latency_us AS predicted_us, p.limiting, p.uncertainty, p.utilization, p.terms_us, p.notes AS prediction_notes,
       CASE WHEN t.status = 'verified' THEN m.latency_us END AS measured_us,
       CASE WHEN t.status = 'verified' THEN NULLIF(s.flops, 0) / m.latency_us / 1e6 END AS tflops,
       CASE WHEN t.status = 'verified' THEN NULLIF(s.min_bytes, 0) / m.latency_us / 1e3 END AS gb_per_s,
       m.relative_error, m.sample_count, m.samples_us, m.protocol, o.observed AS environment,
       b.artifact, b.compiler, b.resources, b.seconds AS build_seconds,
       f.kind AS failure_kind, f.message AS failure_message, f.detail AS failure_detail,
       t.fingerprint, t.lowering_seconds, t.recorded_at,
       t.candidate_id, t.prediction_id, t.build_id, t.measurement_id, s.workload_id, s.target_id, s.environment_id
FROM trials t
JOIN sessions s ON s.id = t.session_id
JOIN candidates c ON c.id = t.candidate_id
JOIN workloads w ON w.id = s.workload_id
JOIN templates k ON k.id = s.template_id
JOIN targets g ON g.id = s.target_id
JOIN environments e ON e.id = s.environment_id
JOIN software v ON v.id = e.software_id
LEFT JOIN predictions p ON p.id = t.prediction_id
LEFT JOIN builds b ON b.id = t.build_id
LEFT JOIN measurements m ON m.id = t.measurement_id
LEFT JOIN environments o ON o.id = m.environment_id
LEFT JOIN failure_reasons f ON f.id = t.failure_id;
CREATE VIEW leaderboard AS WITH runs AS (
    SELECT t.session_id, t.candidate_id, t.status,
           ROW_NUMBER() OVER (PARTITION BY t.candidate_id, g.name, s.environment_id, t.status ORDER BY t.session_id DESC) AS recency,
           SUM(CASE WHEN f.kind = 'wrong_result' THEN 1 ELSE 0 END) OVER (PARTITION BY t.candidate_id, s.environment_id) AS wrong
    FROM trials t
    JOIN sessions s ON s.id = t.session_id
    JOIN targets g ON g.id = s.target_id
    LEFT JOIN failure_reasons f ON f.id = t.failure_id
    WHERE t.status = 'verified' OR f.kind = 'wrong_result'
)
SELECT r.operator, r.workload, r.shape, r.dtype, r.target, r.device,
       RANK() OVER (PARTITION BY r.workload_id, r.target, r.environment_id ORDER BY r.measured_us) AS place,
       r.template, r.template_version, r.config, r.measured_us, r.tflops, r.gb_per_s, r.predicted_us, r.limiting, r.relative_error,
       r.sample_count, r.software, r.model, r.session_id, r.recorded_at, r.candidate_id, r.workload_id, r.environment_id
FROM runs
JOIN records r ON r.session_id = runs.session_id AND r.candidate_id = runs.candidate_id
WHERE runs.status = 'verified' AND runs.recency = 1 AND runs.wrong = 0;
CREATE VIEW best AS WITH verified AS (
    SELECT * FROM (
        SELECT leaderboard.*, ROW_NUMBER() OVER (PARTITION BY workload_id, target ORDER BY measured_us, session_id DESC) AS turn
        FROM leaderboard
    ) AS measured WHERE turn = 1
), predicted AS (
    SELECT session_id, candidate_id FROM (
        SELECT t.session_id, t.candidate_id,
               ROW_NUMBER() OVER (PARTITION BY s.workload_id, g.name ORDER BY t.session_id DESC, p.latency_us) AS turn
        FROM trials t
        JOIN predictions p ON p.id = t.prediction_id
        JOIN sessions s ON s.id = t.session_id
        JOIN targets g ON g.id = s.target_id
        WHERE t.status IN ('predicted', 'built', 'measured')
    ) AS ranked WHERE turn = 1
)
SELECT operator, workload, shape, dtype, target, device, 'verified' AS status, measured_us AS latency_us, tflops, gb_per_s,
       (SELECT MIN(n.latency_us) FROM baselines n JOIN sessions s ON s.id = n.session_id
        WHERE s.workload_id = verified.workload_id AND s.environment_id = verified.environment_id) AS vendor_us,
       predicted_us, limiting, relative_error, template, template_version, config, software, model, session_id, recorded_at
FROM verified
UNION ALL
SELECT r.operator, r.workload, r.shape, r.dtype, r.target, r.device, 'predicted', r.predicted_us,
       NULLIF(s.flops, 0) / r.predicted_us / 1e6, NULLIF(s.min_bytes, 0) / r.predicted_us / 1e3, NULL,
       r.predicted_us, r.limiting, NULL, r.template, r.template_version, r.config, r.software, r.model, r.session_id, r.recorded_at
FROM predicted p
JOIN records r ON r.session_id = p.session_id AND r.candidate_id = p.candidate_id
JOIN sessions s ON s.id = p.session_id
LEFT JOIN verified v ON v.workload_id = r.workload_id AND v.target = r.target
WHERE v.workload_id IS NULL;
CREATE VIEW failures AS SELECT operator, workload, shape, dtype, target, device, template, config,
       failure_kind AS kind, failure_message AS message, failure_detail AS detail, session_id, recorded_at
FROM records
WHERE status = 'failed';
CREATE VIEW prediction_error AS SELECT operator, workload, shape, dtype, target, device, template, config, model, predicted_us, measured_us,
       predicted_us / measured_us - 1 AS relative_error, ABS(predicted_us / measured_us - 1) AS absolute_relative_error,
       uncertainty, limiting, session_id, recorded_at
FROM (
    SELECT records.*, ROW_NUMBER() OVER (PARTITION BY prediction_id, measurement_id ORDER BY session_id) AS turn
    FROM records
    WHERE status = 'verified' AND predicted_us IS NOT NULL
) AS pairs
WHERE turn = 1;
COMMIT;
