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
INSERT INTO "baselines" VALUES(3676897260610766,0,'cuBLAS','[10.5, 10.4]',10.45);
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
	created_at DATETIME NOT NULL, binary TEXT DEFAULT '' NOT NULL, 
	CONSTRAINT pk_builds PRIMARY KEY (id), 
	CONSTRAINT fk_builds_candidate_id FOREIGN KEY(candidate_id) REFERENCES candidates (id), 
	CONSTRAINT fk_builds_software_id FOREIGN KEY(software_id) REFERENCES software (id), 
	CONSTRAINT fk_builds_failure_id FOREIGN KEY(failure_id) REFERENCES failure_reasons (id)
);
INSERT INTO "builds" VALUES(628968480965281359,8010345549448274450,1727875425114377133,NULL,'/cache/ab12/kernel.so','main_kernel','{"registers": 168}','nvcc 13.0',1.7,'2026-11-22 15:06:30.583406','b1');
INSERT INTO "builds" VALUES(2870892451072047432,1298544689631845893,1727875425114377133,NULL,'/cache/ab12/kernel.so','main_kernel','{"registers": 168}','nvcc 13.0',1.7,'2026-11-22 15:06:30.561556','b1');
INSERT INTO "builds" VALUES(2943379478456615480,7789156728639637994,1727875425114377133,NULL,'/cache/ab12/kernel.so','main_kernel','{"registers": 168}','nvcc 13.0',1.7,'2026-11-22 15:06:30.669404','b1');
INSERT INTO "builds" VALUES(3615726932156691845,2400615377077478665,3375631729793160497,NULL,'/cache/ab12/kernel.so','main_kernel','{"registers": 168}','nvcc 13.0',1.7,'2026-11-22 15:06:30.646005','b1');
INSERT INTO "builds" VALUES(3655863611582080346,2426347458074032369,1727875425114377133,NULL,'/cache/ab12/kernel.so','main_kernel','{"registers": 168}','nvcc 13.0',1.7,'2026-11-22 15:06:30.584057','b1');
INSERT INTO "builds" VALUES(3804538613336777242,8039102704443208084,1727875425114377133,5413807556405206368,NULL,'','{}','',0.0,'2026-11-22 15:06:30.591734','');
INSERT INTO "builds" VALUES(4556033034210935585,1431742484919777389,1727875425114377133,NULL,'/cache/ab12/kernel.so','main_kernel','{"registers": 168}','nvcc 13.0',1.7,'2026-11-22 15:06:30.582790','b1');
INSERT INTO "builds" VALUES(5543947885435400428,285125926965989420,8091934444762338413,NULL,'/cache/ab12/kernel.so','main_kernel','{"registers": 168}','nvcc 13.0',1.7,'2026-11-22 15:06:30.667191','b1');
INSERT INTO "builds" VALUES(6534858854167010790,6978469513422154964,1727875425114377133,NULL,'/cache/ab12/kernel.so','main_kernel','{"registers": 168}','nvcc 13.0',1.7,'2026-11-22 15:06:30.590572','b1');
INSERT INTO "builds" VALUES(6713277466969053821,7129819668668205159,1727875425114377133,NULL,'/cache/ab12/kernel.so','main_kernel','{"registers": 168}','nvcc 13.0',1.7,'2026-11-22 15:06:30.572185','b1');
INSERT INTO "builds" VALUES(7079296262752366311,2236623052128795027,1727875425114377133,NULL,'/cache/ab12/kernel.so','main_kernel','{"registers": 168}','nvcc 13.0',1.7,'2026-11-22 15:06:30.669824','b1');
INSERT INTO "builds" VALUES(8096078997089186354,7129819668668205159,8819828438962037509,NULL,'/cache/ab12/kernel.so','main_kernel','{"registers": 168}','nvcc 13.0',1.7,'2026-11-22 15:06:30.628393','b1');
CREATE TABLE calibrations (
	id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	base TEXT NOT NULL, 
	device TEXT NOT NULL, 
	uuid TEXT NOT NULL, 
	fingerprint TEXT NOT NULL, 
	figures JSON NOT NULL, 
	readings JSON NOT NULL, 
	notes JSON NOT NULL, 
	software_id INTEGER NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_calibrations PRIMARY KEY (id), 
	CONSTRAINT fk_calibrations_software_id FOREIGN KEY(software_id) REFERENCES software (id)
);
INSERT INTO "calibrations" VALUES(2150410019060041118,'mine','h200','NVIDIA H200','GPU-7','013573448297','{"device.memory.dram.gb_per_s": 4050.0}','{"device.memory.dram.gb_per_s": {"value": 4050.0, "spread": 0.024691358024691357, "samples": [4000.0, 4100.0, 4050.0], "method": "a copy"}}','["a note"]',1727875425114377133,'2026-11-22 15:06:30.692754');
CREATE TABLE candidates (
	id INTEGER NOT NULL, 
	template_id INTEGER NOT NULL, 
	workload_id INTEGER NOT NULL, 
	arch TEXT NOT NULL, 
	config TEXT NOT NULL, dynamic TEXT DEFAULT '' NOT NULL, 
	CONSTRAINT pk_candidates PRIMARY KEY (id), 
	CONSTRAINT fk_candidates_template_id FOREIGN KEY(template_id) REFERENCES templates (id), 
	CONSTRAINT fk_candidates_workload_id FOREIGN KEY(workload_id) REFERENCES workloads (id)
);
INSERT INTO "candidates" VALUES(285125926965989420,5582214027773854906,6505166275763499695,'x86_64','{"block_m":1,"policy":"square","stages":3,"swizzle":true}','');
INSERT INTO "candidates" VALUES(833158661170312369,6049501879917886272,3340071666506436994,'sm_90a','{"block_m":3,"policy":"square","stages":3,"swizzle":true}','m');
INSERT INTO "candidates" VALUES(1298544689631845893,6049501879917886272,3340071666506436994,'sm_90a','{"block_m":1,"policy":"square","stages":3,"swizzle":true}','');
INSERT INTO "candidates" VALUES(1431742484919777389,6049501879917886272,3340071666506436994,'sm_90a','{"block_m":4,"policy":"square","stages":3,"swizzle":true}','');
INSERT INTO "candidates" VALUES(1554558869492963079,6049501879917886272,3340071666506436994,'sm_90a','{"block_m":3,"policy":"square","stages":3,"swizzle":true}','');
INSERT INTO "candidates" VALUES(2236623052128795027,6049501879917886272,3340071666506436994,'sm_90a','{"block_m":2,"policy":"square","stages":3,"swizzle":true}','m');
INSERT INTO "candidates" VALUES(2400615377077478665,6049501879917886272,3340071666506436994,'sm_90a','{"block_m":9,"policy":"square","stages":3,"swizzle":true}','');
INSERT INTO "candidates" VALUES(2426347458074032369,6049501879917886272,3340071666506436994,'sm_90a','{"block_m":6,"policy":"square","stages":3,"swizzle":true}','');
INSERT INTO "candidates" VALUES(6978469513422154964,6049501879917886272,3340071666506436994,'sm_90a','{"block_m":7,"policy":"square","stages":3,"swizzle":true}','');
INSERT INTO "candidates" VALUES(7129819668668205159,6049501879917886272,3340071666506436994,'sm_90a','{"block_m":2,"policy":"square","stages":3,"swizzle":true}','');
INSERT INTO "candidates" VALUES(7789156728639637994,6049501879917886272,3340071666506436994,'sm_90a','{"block_m":1,"policy":"square","stages":3,"swizzle":true}','m');
INSERT INTO "candidates" VALUES(8010345549448274450,6049501879917886272,3340071666506436994,'sm_90a','{"block_m":5,"policy":"square","stages":3,"swizzle":true}','');
INSERT INTO "candidates" VALUES(8039102704443208084,6049501879917886272,3340071666506436994,'sm_90a','{"block_m":8,"policy":"square","stages":3,"swizzle":true}','');
CREATE TABLE dispatch_misses (
	id INTEGER NOT NULL, 
	workload_id INTEGER NOT NULL, 
	target TEXT NOT NULL, 
	device TEXT NOT NULL, 
	template TEXT NOT NULL, 
	count BIGINT NOT NULL, 
	config TEXT NOT NULL, 
	source TEXT NOT NULL, 
	expected_us DOUBLE, 
	first_at DATETIME NOT NULL, 
	last_at DATETIME NOT NULL, batch BIGINT DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_dispatch_misses PRIMARY KEY (id), 
	CONSTRAINT fk_dispatch_misses_workload_id FOREIGN KEY(workload_id) REFERENCES workloads (id)
);
INSERT INTO "dispatch_misses" VALUES(1902347485033123447,9202464851352357271,'h200','NVIDIA H200','matmul_hopper',3,'{"block_m":1,"policy":"square","stages":3,"swizzle":true}','model',9.5,'2026-01-01 00:00:00.000000','2026-01-01 00:00:00.000000',0);
CREATE TABLE environments (
	id INTEGER NOT NULL, 
	software_id INTEGER NOT NULL, 
	device TEXT NOT NULL, 
	observed JSON NOT NULL, uuid TEXT DEFAULT '' NOT NULL, driver TEXT DEFAULT '' NOT NULL, toolkit TEXT DEFAULT '' NOT NULL, tilelang TEXT DEFAULT '' NOT NULL, torch TEXT DEFAULT '' NOT NULL, 
	CONSTRAINT pk_environments PRIMARY KEY (id), 
	CONSTRAINT fk_environments_software_id FOREIGN KEY(software_id) REFERENCES software (id)
);
INSERT INTO "environments" VALUES(1365294829681207165,8819828438962037509,'NVIDIA H200','{"driver": "570.1"}','','570.1','nvcc 13.0.88','0.1.15','2.12.0');
INSERT INTO "environments" VALUES(1805119967927044372,3375631729793160497,'NVIDIA H200','{}','','570.1','nvcc 13.0.88','0.1.15','2.13.0');
INSERT INTO "environments" VALUES(2292217581020912870,8819828438962037509,'NVIDIA H200','{}','','580.159.04','nvcc 13.0.88','0.1.15','2.12.0');
INSERT INTO "environments" VALUES(2866259753063248508,1042573738610853190,'','{}','','','nvcc 13.0.88','0.1.15','');
INSERT INTO "environments" VALUES(2960402154140416747,1727875425114377133,'NVIDIA H200','{"driver": "570.1"}','','570.1','nvcc 13.0.88','0.1.15','2.13.0');
INSERT INTO "environments" VALUES(3373925324357293954,1727875425114377133,'NVIDIA H200','{}','','580.159.04','nvcc 13.0.88','0.1.15','2.13.0');
INSERT INTO "environments" VALUES(5157776371819571985,3375631729793160497,'NVIDIA H200','{"driver": "570.1"}','','570.1','nvcc 13.0.88','0.1.15','2.13.0');
INSERT INTO "environments" VALUES(6765826776168529639,8091934444762338413,'AMD EPYC','{"driver": "570.1"}','','570.1','g++ 12.2.0','0.1.15','');
INSERT INTO "environments" VALUES(7973982355400489772,1727875425114377133,'NVIDIA H200','{"driver": "580.159.04", "uuid": "GPU-5f7e", "compiler": "nvcc 13.0.88", "torch": "2.13.0", "tilelang": "0.1.15"}','GPU-5f7e','580.159.04','nvcc 13.0.88','0.1.15','2.13.0');
INSERT INTO "environments" VALUES(8894375580576360949,8091934444762338413,'AMD EPYC','{}','','','g++ 12.2.0','0.1.15','');
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
	created_at DATETIME NOT NULL, protocol_key TEXT DEFAULT '' NOT NULL, observed JSON DEFAULT '{}' NOT NULL, 
	CONSTRAINT pk_measurements PRIMARY KEY (id), 
	CONSTRAINT fk_measurements_candidate_id FOREIGN KEY(candidate_id) REFERENCES candidates (id), 
	CONSTRAINT fk_measurements_environment_id FOREIGN KEY(environment_id) REFERENCES environments (id), 
	CONSTRAINT fk_measurements_failure_id FOREIGN KEY(failure_id) REFERENCES failure_reasons (id)
);
INSERT INTO "measurements" VALUES(665985544057108155,7129819668668205159,1365294829681207165,NULL,'[9.5]',1,9.5,0.001,'{"l2": "cold", "samples": 1, "graph": false, "flush_factor": 2.5}','2026-11-22 15:06:30.628393','cold','{"clock_mhz": 1980.0}');
INSERT INTO "measurements" VALUES(2894526281089965134,2400615377077478665,5157776371819571985,NULL,'[8.0]',1,8.0,0.001,'{"l2": "cold", "samples": 1, "graph": false, "flush_factor": 2.5}','2026-11-22 15:06:30.646005','cold','{"clock_mhz": 1980.0}');
INSERT INTO "measurements" VALUES(3772069147713592465,6978469513422154964,3373925324357293954,1179677272499184475,'[]',0,NULL,NULL,'{}','2026-11-22 15:06:30.590572','cold','{}');
INSERT INTO "measurements" VALUES(5312708846056632524,7129819668668205159,2960402154140416747,NULL,'[9.0]',1,9.0,0.001,'{"l2": "cold", "samples": 1, "graph": false, "flush_factor": 2.5}','2026-11-22 15:06:30.572185','cold','{"clock_mhz": 1980.0}');
INSERT INTO "measurements" VALUES(5897717546246092258,2426347458074032369,3373925324357293954,3598140065169330606,'[]',0,NULL,NULL,'{}','2026-11-22 15:06:30.584057','cold','{}');
INSERT INTO "measurements" VALUES(6856403698539357110,7789156728639637994,2960402154140416747,NULL,'[12.0]',1,12.0,0.001,'{"l2": "cold", "samples": 1, "graph": false, "flush_factor": 2.5}','2026-11-22 15:06:30.669404','cold','{"clock_mhz": 1980.0}');
INSERT INTO "measurements" VALUES(7365901347075288214,8010345549448274450,2960402154140416747,NULL,'[7.0]',1,7.0,NULL,'{"l2": "cold", "samples": 1, "graph": false, "flush_factor": 2.5}','2026-11-22 15:06:30.583406','cold','{"clock_mhz": 1980.0}');
INSERT INTO "measurements" VALUES(7874787684613626397,2236623052128795027,2960402154140416747,NULL,'[14.0]',1,14.0,0.001,'{"l2": "cold", "samples": 1, "graph": false, "flush_factor": 2.5}','2026-11-22 15:06:30.669824','cold','{"clock_mhz": 1980.0}');
INSERT INTO "measurements" VALUES(8087086849271489198,1298544689631845893,7973982355400489772,NULL,'[10.0, 11.0, 12.0]',3,11.0,0.001,'{"l2": "cold", "samples": 3, "graph": false, "flush_factor": 2.5}','2026-11-22 15:06:30.561556','cold','{"clock_mhz": 1980.0}');
INSERT INTO "measurements" VALUES(8344811722791803078,285125926965989420,6765826776168529639,NULL,'[5.0]',1,5.0,0.001,'{"l2": "cold", "samples": 1, "graph": false, "flush_factor": 2.5}','2026-11-22 15:06:30.667191','cold','{"clock_mhz": 1980.0}');
CREATE TABLE parametric_profiles (
	id INTEGER NOT NULL, 
	profile_key TEXT NOT NULL, 
	template TEXT NOT NULL, 
	template_version TEXT NOT NULL, 
	arch TEXT NOT NULL, 
	shape_class TEXT NOT NULL, 
	reader TEXT NOT NULL, 
	config TEXT NOT NULL, 
	body BLOB NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_parametric_profiles PRIMARY KEY (id)
);
INSERT INTO "parametric_profiles" VALUES(5562977895810630908,'12c1a063c4582211','matmul_hopper','0123456789ab','sm_90a','m*n','reader-1','{"block_m":2,"policy":"square","stages":3,"swizzle":true}',X'789C35CD410E83300C04C0BFEC3907485155FC15145569302822843621AA00F1F79A436F5E79BC3EE09638F81174E01516373D679056782FC1BB0D84FC29363114F26A47CEA09B8C5FBFEF81416B2A7C5EAB54DC5A8489BF28730475DD01296BAAF6AE20B9AE74A330811E75ABE56AD05042C6E47BC18DD2E634C628A412AE3FB184208187926DF8C77E8B76F64EBC549BF307B0F13C27','2026-11-22 15:06:30.671769');
INSERT INTO "parametric_profiles" VALUES(6602868969036444832,'12c1a063c4582211','matmul_hopper','0123456789ab','sm_90a','m*n','reader-1','{"block_m":1,"policy":"square","stages":3,"swizzle":true}',X'789C258DC10E82400C44FF65CE3DB8488CF457C8C6E05AC886157497C608E1DF2DF1D6977933DD10E6A98F0378C33DCD61BC3DC18EF09A530C5F30CA5BBB2C2094A51BA480CF767EE2BA26012F59653FA2AC6151D3CC3F549109DCB61B6CAC3E351782B13B553561045F5D5359AB772053861C1F26D754F9DD7B4FC89A8E3F93A66420BD962EFD71FF0114A7372D','2026-11-22 15:06:30.671769');
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
	created_at DATETIME NOT NULL, ranking_us DOUBLE, 
	CONSTRAINT pk_predictions PRIMARY KEY (id), 
	CONSTRAINT fk_predictions_candidate_id FOREIGN KEY(candidate_id) REFERENCES candidates (id), 
	CONSTRAINT fk_predictions_target_id FOREIGN KEY(target_id) REFERENCES targets (id), 
	CONSTRAINT fk_predictions_software_id FOREIGN KEY(software_id) REFERENCES software (id)
);
INSERT INTO "predictions" VALUES(143337792316467501,2426347458074032369,838112082303434328,1727875425114377133,'analytical-1','analytical-1',10.0,'matrix',0.1,'{"matrix": 0.9, "dram": 0.4}','{"matrix": 9.0, "launch": 1.0}','["a note"]','2026-11-22 15:06:30.584057',10.0);
INSERT INTO "predictions" VALUES(396138186255849796,1431742484919777389,838112082303434328,1727875425114377133,'analytical-1','analytical-1',10.0,'matrix',0.1,'{"matrix": 0.9, "dram": 0.4}','{"matrix": 9.0, "launch": 1.0}','["a note"]','2026-11-22 15:06:30.582790',10.0);
INSERT INTO "predictions" VALUES(554304365672669909,1298544689631845893,838112082303434328,1727875425114377133,'analytical-1','analytical-1',10.0,'matrix',0.1,'{"matrix": 0.9, "dram": 0.4}','{"matrix": 9.0, "launch": 1.0}','["a note"]','2026-11-22 15:06:30.561556',10.0);
INSERT INTO "predictions" VALUES(774279001280891537,833158661170312369,838112082303434328,1727875425114377133,'analytical-1','analytical-1',10.0,'matrix',0.1,'{"matrix": 0.9, "dram": 0.4}','{"matrix": 9.0, "launch": 1.0}','["a note"]','2026-11-22 15:06:30.670160',10.0);
INSERT INTO "predictions" VALUES(2681727919951852516,6978469513422154964,838112082303434328,1727875425114377133,'analytical-1','analytical-1',10.0,'matrix',0.1,'{"matrix": 0.9, "dram": 0.4}','{"matrix": 9.0, "launch": 1.0}','["a note"]','2026-11-22 15:06:30.590572',10.0);
INSERT INTO "predictions" VALUES(3338334534749014808,8039102704443208084,838112082303434328,1727875425114377133,'analytical-1','analytical-1',10.0,'matrix',0.1,'{"matrix": 0.9, "dram": 0.4}','{"matrix": 9.0, "launch": 1.0}','["a note"]','2026-11-22 15:06:30.591734',10.0);
INSERT INTO "predictions" VALUES(3343645080964030523,7129819668668205159,838112082303434328,1727875425114377133,'analytical-1','analytical-1',10.0,'matrix',0.1,'{"matrix": 0.9, "dram": 0.4}','{"matrix": 9.0, "launch": 1.0}','["a note"]','2026-11-22 15:06:30.572185',10.0);
INSERT INTO "predictions" VALUES(4063778541016553187,1298544689631845893,838112082303434328,1042573738610853190,'analytical-1','analytical-1',3.0,'matrix',0.1,'{"matrix": 0.9, "dram": 0.4}','{"matrix": 9.0, "launch": 1.0}','["a note"]','2026-11-22 15:06:30.654481',3.0);
INSERT INTO "predictions" VALUES(4117670403407980037,1554558869492963079,838112082303434328,1727875425114377133,'analytical-1','analytical-1',4.5,'matrix',0.1,'{"matrix": 0.9, "dram": 0.4}','{"matrix": 9.0, "launch": 1.0}','["a note"]','2026-11-22 15:06:30.581629',4.5);
INSERT INTO "predictions" VALUES(4882347823632830694,7789156728639637994,838112082303434328,1727875425114377133,'analytical-1','analytical-1',10.0,'matrix',0.1,'{"matrix": 0.9, "dram": 0.4}','{"matrix": 9.0, "launch": 1.0}','["a note"]','2026-11-22 15:06:30.669404',10.0);
INSERT INTO "predictions" VALUES(6412819278609305055,2236623052128795027,838112082303434328,1727875425114377133,'analytical-1','analytical-1',10.0,'matrix',0.1,'{"matrix": 0.9, "dram": 0.4}','{"matrix": 9.0, "launch": 1.0}','["a note"]','2026-11-22 15:06:30.669824',10.0);
INSERT INTO "predictions" VALUES(6669377528469041182,8010345549448274450,838112082303434328,1727875425114377133,'analytical-1','analytical-1',10.0,'matrix',0.1,'{"matrix": 0.9, "dram": 0.4}','{"matrix": 9.0, "launch": 1.0}','["a note"]','2026-11-22 15:06:30.583406',10.0);
INSERT INTO "predictions" VALUES(6974466805713061166,2400615377077478665,838112082303434328,3375631729793160497,'analytical-1','analytical-1',10.0,'matrix',0.1,'{"matrix": 0.9, "dram": 0.4}','{"matrix": 9.0, "launch": 1.0}','["a note"]','2026-11-22 15:06:30.646005',10.0);
INSERT INTO "predictions" VALUES(7652405582254285029,285125926965989420,7203255858014579756,8091934444762338413,'analytical-1','analytical-1',10.0,'matrix',0.1,'{"matrix": 0.9, "dram": 0.4}','{"matrix": 9.0, "launch": 1.0}','["a note"]','2026-11-22 15:06:30.667191',10.0);
INSERT INTO "predictions" VALUES(8994444432621277398,7129819668668205159,838112082303434328,8819828438962037509,'analytical-1','analytical-1',10.0,'matrix',0.1,'{"matrix": 0.9, "dram": 0.4}','{"matrix": 9.0, "launch": 1.0}','["a note"]','2026-11-22 15:06:30.628393',10.0);
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
	messages JSON NOT NULL, protocol TEXT DEFAULT '' NOT NULL, decision JSON, winner_id INTEGER CONSTRAINT fk_sessions_winner_id REFERENCES candidates (id), dynamic TEXT DEFAULT '' NOT NULL, shape_family BIGINT DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_sessions PRIMARY KEY (id), 
	CONSTRAINT fk_sessions_template_id FOREIGN KEY(template_id) REFERENCES templates (id), 
	CONSTRAINT fk_sessions_workload_id FOREIGN KEY(workload_id) REFERENCES workloads (id), 
	CONSTRAINT fk_sessions_target_id FOREIGN KEY(target_id) REFERENCES targets (id), 
	CONSTRAINT fk_sessions_environment_id FOREIGN KEY(environment_id) REFERENCES environments (id)
);
INSERT INTO "sessions" VALUES(3676897260610766,6049501879917886272,3340071666506436994,838112082303434328,3373925324357293954,'9b5229747a1c6847','analytical-1','quick',3,'{"sampler": "tpe"}','7a3966621523d649','complete','elsewhere|1|1','2026-11-22 15:06:30.545464','2026-11-22 15:06:30.612163',1.5,1000000000.0,1000000.0,'{"size": 10, "legal": 5, "rejected": {"smem": 5}}','{"built": 1, "failed": 3, "measured": 1, "predicted": 1, "verified": 2}','["a message"]','cold','{"winner": {"block_m": 1, "policy": "square", "stages": 3, "swizzle": true}, "tied": [], "reason": "the fastest"}',1298544689631845893,'',7280995119259887758);
INSERT INTO "sessions" VALUES(3676897260804137,6049501879917886272,3340071666506436994,838112082303434328,2292217581020912870,'9c6f8fa69db10bb2','analytical-1','quick',3,'{"sampler": "tpe"}','7a3966621523d649','interrupted','elsewhere|1|1','2026-11-22 15:06:30.627367','2026-11-22 15:06:30.634459',1.5,1000000000.0,1000000.0,'{"size": 10, "legal": 5, "rejected": {"smem": 5}}','{"verified": 1}','["a message"]','cold',NULL,NULL,'',7280995119259887758);
INSERT INTO "sessions" VALUES(3676897260824542,6049501879917886272,3340071666506436994,838112082303434328,1805119967927044372,'00fcebf983317fa2','analytical-1','quick',3,'{"sampler": "tpe"}','7a3966621523d649','complete','elsewhere|1|1','2026-11-22 15:06:30.636508','2026-11-22 15:06:30.647817',1.5,1000000000.0,1000000.0,'{"size": 10, "legal": 5, "rejected": {"smem": 5}}','{"verified": 1}','["a message"]','cold',NULL,NULL,'',3146655591317413799);
INSERT INTO "sessions" VALUES(3676897260849711,6049501879917886272,3340071666506436994,838112082303434328,2866259753063248508,'cd9d00f87a12e033','analytical-1','quick',3,'{"sampler": "tpe"}','7a3966621523d649','complete','elsewhere|1|1','2026-11-22 15:06:30.653469','2026-11-22 15:06:30.655559',1.5,1000000000.0,1000000.0,'{"size": 10, "legal": 5, "rejected": {"smem": 5}}','{"predicted": 1}','["a message"]','',NULL,NULL,'',2920014771158938033);
INSERT INTO "sessions" VALUES(3676897260883757,5582214027773854906,6505166275763499695,7203255858014579756,8894375580576360949,'dacefd336e840c6e','analytical-1','quick',3,'{"sampler": "tpe"}','7a3966621523d649','running','elsewhere|1|1','2026-11-22 15:06:30.665892',NULL,0.0,1000000000.0,1000000.0,'{"size": 10, "legal": 5, "rejected": {"smem": 5}}','{}','[]','cold',NULL,NULL,'',6152778024255165988);
INSERT INTO "sessions" VALUES(3676897260889601,6049501879917886272,3340071666506436994,838112082303434328,3373925324357293954,'985307d6e7835201','analytical-1','quick',3,'{"sampler": "tpe"}','7a3966621523d649','complete','elsewhere|1|1','2026-11-22 15:06:30.668587','2026-11-22 15:06:30.671285',2.5,1000000000.0,1000000.0,'{"size": 10, "legal": 5, "rejected": {"smem": 5}}','{"predicted": 1, "verified": 2}','["a message"]','cold','{"winner": {"block_m": 1, "policy": "square", "stages": 3, "swizzle": true}, "tied": [{"block_m": 2, "policy": "square", "stages": 3, "swizzle": true}], "reason": "the simplest"}',7789156728639637994,'m',7280995119259887758);
CREATE TABLE software (
	id INTEGER NOT NULL, 
	versions JSON NOT NULL, code_key TEXT DEFAULT '' NOT NULL, time_key TEXT DEFAULT '' NOT NULL, 
	CONSTRAINT pk_software PRIMARY KEY (id)
);
INSERT INTO "software" VALUES(1042573738610853190,'{"nvcc": "nvcc 13.0.88", "tilelang": "0.1.15"}','15e99c54eff3792f','15e99c54eff3792f');
INSERT INTO "software" VALUES(1727875425114377133,'{"driver": "580.159.04", "nvcc": "nvcc 13.0.88", "tilelang": "0.1.15", "torch": "2.13.0"}','15e99c54eff3792f','713593c335722814');
INSERT INTO "software" VALUES(3375631729793160497,'{"driver": "570.1", "nvcc": "nvcc 13.0.88", "tilelang": "0.1.15", "torch": "2.13.0"}','15e99c54eff3792f','3e523a252373a0a7');
INSERT INTO "software" VALUES(8091934444762338413,'{"c++": "g++ 12.2.0", "tilelang": "0.1.15"}','77c28a466d1a0dd6','77c28a466d1a0dd6');
INSERT INTO "software" VALUES(8819828438962037509,'{"driver": "580.159.04", "nvcc": "nvcc 13.0.88", "tilelang": "0.1.15", "torch": "2.12.0"}','15e99c54eff3792f','713593c335722814');
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
INSERT INTO "tilesight_version" VALUES('0006');
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
	recorded_at DATETIME NOT NULL, measured_us DOUBLE, 
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
INSERT INTO "trials" VALUES(3676897260610766,1298544689631845893,554304365672669909,2870892451072047432,8087086849271489198,NULL,'verified','fp1',0.0,'2026-11-22 15:06:30.561556',11.0);
INSERT INTO "trials" VALUES(3676897260610766,1431742484919777389,396138186255849796,4556033034210935585,NULL,NULL,'built','fp4',0.0,'2026-11-22 15:06:30.582790',NULL);
INSERT INTO "trials" VALUES(3676897260610766,1554558869492963079,4117670403407980037,NULL,NULL,NULL,'predicted','fp3',0.25,'2026-11-22 15:06:30.581629',NULL);
INSERT INTO "trials" VALUES(3676897260610766,2426347458074032369,143337792316467501,3655863611582080346,5897717546246092258,3598140065169330606,'failed','',0.0,'2026-11-22 15:06:30.584057',NULL);
INSERT INTO "trials" VALUES(3676897260610766,6978469513422154964,2681727919951852516,6534858854167010790,3772069147713592465,1179677272499184475,'failed','',0.0,'2026-11-22 15:06:30.590572',NULL);
INSERT INTO "trials" VALUES(3676897260610766,7129819668668205159,3343645080964030523,6713277466969053821,5312708846056632524,NULL,'verified','fp2',0.0,'2026-11-22 15:06:30.572185',9.0);
INSERT INTO "trials" VALUES(3676897260610766,8010345549448274450,6669377528469041182,628968480965281359,7365901347075288214,NULL,'measured','',0.0,'2026-11-22 15:06:30.583406',NULL);
INSERT INTO "trials" VALUES(3676897260610766,8039102704443208084,3338334534749014808,3804538613336777242,NULL,5413807556405206368,'failed','',0.0,'2026-11-22 15:06:30.591734',NULL);
INSERT INTO "trials" VALUES(3676897260804137,7129819668668205159,8994444432621277398,8096078997089186354,665985544057108155,NULL,'verified','fp2',0.0,'2026-11-22 15:06:30.628393',9.5);
INSERT INTO "trials" VALUES(3676897260824542,2400615377077478665,6974466805713061166,3615726932156691845,2894526281089965134,NULL,'verified','fp9',0.0,'2026-11-22 15:06:30.646005',8.0);
INSERT INTO "trials" VALUES(3676897260849711,1298544689631845893,4063778541016553187,NULL,NULL,NULL,'predicted','fp1',0.25,'2026-11-22 15:06:30.654481',NULL);
INSERT INTO "trials" VALUES(3676897260883757,285125926965989420,7652405582254285029,5543947885435400428,8344811722791803078,NULL,'verified','fp1',0.0,'2026-11-22 15:06:30.667191',5.0);
INSERT INTO "trials" VALUES(3676897260889601,833158661170312369,774279001280891537,NULL,NULL,NULL,'predicted','fp3',0.25,'2026-11-22 15:06:30.670160',NULL);
INSERT INTO "trials" VALUES(3676897260889601,2236623052128795027,6412819278609305055,7079296262752366311,7874787684613626397,NULL,'verified','fp2',0.0,'2026-11-22 15:06:30.669824',14.0);
INSERT INTO "trials" VALUES(3676897260889601,7789156728639637994,4882347823632830694,2943379478456615480,6856403698539357110,NULL,'verified','m',0.0,'2026-11-22 15:06:30.669404',12.0);
CREATE TABLE workload_dims (
	workload_id INTEGER NOT NULL, 
	dim TEXT NOT NULL, 
	size BIGINT NOT NULL, 
	CONSTRAINT pk_workload_dims PRIMARY KEY (workload_id, dim), 
	CONSTRAINT fk_workload_dims_workload_id FOREIGN KEY(workload_id) REFERENCES workloads (id)
);
INSERT INTO "workload_dims" VALUES(3340071666506436994,'m',4096);
INSERT INTO "workload_dims" VALUES(3340071666506436994,'n',1024);
INSERT INTO "workload_dims" VALUES(3340071666506436994,'k',8192);
INSERT INTO "workload_dims" VALUES(6505166275763499695,'m',777);
INSERT INTO "workload_dims" VALUES(6505166275763499695,'k',4096);
INSERT INTO "workload_dims" VALUES(9202464851352357271,'m',8192);
INSERT INTO "workload_dims" VALUES(9202464851352357271,'n',1024);
INSERT INTO "workload_dims" VALUES(9202464851352357271,'k',8192);
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
INSERT INTO "workloads" VALUES(9202464851352357271,'matmul(m=8192,n=1024,k=8192;splits=2,transposed=true,dtype=bfloat16)','matmul','bfloat16','{"m": 8192, "n": 1024, "k": 8192}','{"transposed": true, "splits": 2}',NULL);
CREATE INDEX ix_workloads_operator_dtype ON workloads (operator, dtype);
CREATE INDEX ix_candidates_workload_id_template_id_arch ON candidates (workload_id, template_id, arch);
CREATE INDEX ix_predictions_candidate_id ON predictions (candidate_id);
CREATE INDEX ix_builds_candidate_id ON builds (candidate_id);
CREATE INDEX ix_measurements_candidate_id ON measurements (candidate_id);
CREATE INDEX ix_sessions_context_key ON sessions (context_key);
CREATE INDEX ix_sessions_workload_id ON sessions (workload_id);
CREATE INDEX ix_trials_candidate_id ON trials (candidate_id);
CREATE INDEX ix_trials_measured ON trials (session_id, measured_us) WHERE measured_us IS NOT NULL;
CREATE INDEX ix_calibrations_name ON calibrations (name);
CREATE INDEX ix_dispatch_misses_workload_id ON dispatch_misses (workload_id);
CREATE INDEX ix_sessions_shape_family_workload_id_dynamic ON sessions (shape_family, workload_id, dynamic);
CREATE INDEX ix_workload_dims_dim_size ON workload_dims (dim, size);
CREATE INDEX ix_parametric_profiles_profile_key ON parametric_profiles (profile_key);
CREATE VIEW records AS SELECT t.session_id, s.effort, s.state AS session_state, w.operator, w.key AS workload, w.name AS shape,
       w.dtype, w.dims, w.attrs, k.name AS template, k.version AS template_version, g.name AS target,
       g.fingerprint AS target_fingerprint, c.arch, e.device, v.versions AS software, s.model, c.config,
       c.dynamic,
       t.status, p.latency_us AS predicted_us, p.ranking_us, p.limiting, p.uncertainty, p.utilization,
       p.terms_us,
       p.notes AS prediction_notes,
       CASE WHEN t.status = 'verified' THEN m.latency_us END AS measured_us,
       CASE WHEN t.status = 'verified' AND m.latency_us BETWEEN 1e-9 AND 1e18 AND s.flops BETWEEN 1 AND 1e60
            THEN s.flops / m.latency_us / 1e6 END AS tflops,
       CASE WHEN t.status = 'verified' AND m.latency_us BETWEEN 1e-9 AND 1e18
                 AND s.min_bytes BETWEEN 1 AND 1e60
            THEN s.min_bytes / m.latency_us / 1e3 END AS gb_per_s,
       m.relative_error, m.sample_count, m.samples_us, m.protocol, s.protocol AS protocol_key, m.observed,
       o.observed AS environment,
       b.artifact, b.binary, b.compiler, b.resources, b.seconds AS build_seconds,
       f.kind AS failure_kind, f.message AS failure_message, f.detail AS failure_detail,
       t.fingerprint, t.lowering_seconds, t.recorded_at,
       t.candidate_id, t.prediction_id, t.build_id, t.measurement_id, s.workload_id, s.target_id,
       s.environment_id
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
           ROW_NUMBER() OVER (
               PARTITION BY t.candidate_id, g.name, s.environment_id, s.protocol, t.status
               ORDER BY t.session_id DESC
           ) AS recency,
           SUM(CASE WHEN t.status = 'failed' THEN 1 ELSE 0 END)
               OVER (PARTITION BY t.candidate_id, s.environment_id) AS wrong
    FROM trials t
    JOIN sessions s ON s.id = t.session_id
    JOIN targets g ON g.id = s.target_id
    LEFT JOIN failure_reasons f ON f.id = t.failure_id
    WHERE t.status = 'verified' OR f.kind IN ('wrong_result', 'nondeterministic')
)
SELECT r.operator, r.workload, r.shape, r.dtype, r.target, r.device, r.protocol_key,
       RANK() OVER (
           PARTITION BY r.workload_id, r.target, r.environment_id, r.protocol_key ORDER BY r.measured_us
       ) AS place,
       r.template, r.template_version, r.config, r.dynamic, r.measured_us, r.tflops, r.gb_per_s,
       r.predicted_us,
       r.limiting, r.relative_error, r.sample_count, r.software, r.model, r.session_id, r.recorded_at,
       r.candidate_id, r.measurement_id, r.workload_id, r.environment_id
FROM runs
JOIN records r ON r.session_id = runs.session_id AND r.candidate_id = runs.candidate_id
WHERE runs.status = 'verified' AND runs.recency = 1 AND runs.wrong = 0;
CREATE VIEW best AS WITH board AS (
    SELECT * FROM leaderboard
), beaten AS (
    SELECT DISTINCT t.candidate_id, t.measurement_id
    FROM sessions s
    JOIN board w ON w.candidate_id = s.winner_id AND w.environment_id = s.environment_id
    JOIN trials t ON t.session_id = s.id
    WHERE t.status = 'verified' AND t.candidate_id <> s.winner_id
), verified AS (
    SELECT * FROM (
        SELECT board.*, ROW_NUMBER() OVER (
                   PARTITION BY board.workload_id, board.target, board.protocol_key
                   ORDER BY measured_us, session_id DESC, board.candidate_id
               ) AS turn,
               MAX(board.protocol_key) OVER (PARTITION BY board.workload_id, board.target) AS last_key
        FROM board
        WHERE (board.candidate_id, board.measurement_id)
              NOT IN (SELECT candidate_id, measurement_id FROM beaten)
    ) AS measured WHERE turn = 1 AND (protocol_key <> '' OR last_key = '')
), predicted AS (
    SELECT session_id, candidate_id FROM (
        SELECT t.session_id, t.candidate_id,
               ROW_NUMBER() OVER (
                   PARTITION BY s.workload_id, g.name ORDER BY t.session_id DESC, p.ranking_us, t.candidate_id
               ) AS turn
        FROM trials t
        JOIN predictions p ON p.id = t.prediction_id
        JOIN sessions s ON s.id = t.session_id
        JOIN targets g ON g.id = s.target_id
        WHERE t.status IN ('predicted', 'built', 'measured', 'noisy')
    ) AS ranked WHERE turn = 1
)
SELECT operator, workload, shape, dtype, target, device, protocol_key, 'verified' AS status,
       measured_us AS latency_us, tflops, gb_per_s,
       (SELECT MIN(n.latency_us) FROM baselines n JOIN sessions s ON s.id = n.session_id
        WHERE s.workload_id = verified.workload_id AND s.environment_id = verified.environment_id
        AND s.protocol = verified.protocol_key) AS vendor_us,
       predicted_us, limiting, relative_error, template, template_version, config, dynamic, software, model,
       session_id, recorded_at
FROM verified
UNION ALL
SELECT r.operator, r.workload, r.shape, r.dtype, r.target, r.device, r.protocol_key, 'predicted',
       r.predicted_us,
       CASE WHEN r.predicted_us BETWEEN 1e-9 AND 1e18 AND s.flops BETWEEN 1 AND 1e60
            THEN s.flops / r.predicted_us / 1e6 END,
       CASE WHEN r.predicted_us BETWEEN 1e-9 AND 1e18 AND s.min_bytes BETWEEN 1 AND 1e60
            THEN s.min_bytes / r.predicted_us / 1e3 END, NULL,
       r.predicted_us, r.limiting, NULL, r.template, r.template_version, r.config, r.dynamic, r.software,
       r.model,
       r.session_id, r.recorded_at
FROM predicted p
JOIN records r ON r.session_id = p.session_id AND r.candidate_id = p.candidate_id
JOIN sessions s ON s.id = p.session_id
LEFT JOIN verified v ON v.workload_id = r.workload_id AND v.target = r.target
WHERE v.workload_id IS NULL;
CREATE VIEW failures AS SELECT operator, workload, shape, dtype, target, device, template, config, dynamic,
       failure_kind AS kind, failure_message AS message, failure_detail AS detail, session_id, recorded_at
FROM records
WHERE status = 'failed';
CREATE VIEW prediction_error AS SELECT operator, workload, shape, dtype, target, device, template, config, dynamic, model, predicted_us,
       measured_us,
       predicted_us / measured_us - 1 AS relative_error,
       ABS(predicted_us / measured_us - 1) AS absolute_relative_error,
       uncertainty, limiting, session_id, recorded_at
FROM (
    SELECT records.*,
           ROW_NUMBER() OVER (PARTITION BY prediction_id, measurement_id ORDER BY session_id) AS turn
    FROM records
    WHERE status = 'verified' AND predicted_us BETWEEN 1e-9 AND 1e18 AND measured_us BETWEEN 1e-9 AND 1e18
) AS pairs
WHERE turn = 1;
CREATE VIEW misses AS SELECT w.operator, w.key AS workload, w.name AS shape, w.dtype, w.dims, w.attrs, d.target, d.device,
       d.template,
       d.count AS calls, d.expected_us,
       CASE WHEN d.expected_us < 1e280 THEN d.count * d.expected_us ELSE 0 END AS cost_us,
       d.source, d.config, d.first_at, d.last_at
FROM dispatch_misses d
JOIN workloads w ON w.id = d.workload_id;
COMMIT;
